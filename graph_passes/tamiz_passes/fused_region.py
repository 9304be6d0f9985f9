"""Where the parts of an attention are that another tool has fused into one op.

    GroupQueryAttention (com.microsoft)   caches, rotary embedding, window and soft cap inside
    MultiHeadAttention (com.microsoft)    caches inside, or concatenated before it
    Attention (ONNX, opset 23 and 24)     caches inside, or concatenated before it

Rotary embedding may be in front of it, as RotaryEmbedding of either domain or in primitive ops.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import GraphEditor
from tamiz_passes.attention_region import (
    Cache,
    Region,
    cache_of,
    heads_source,
    joined_output,
)
from tamiz_passes.rotation import (
    Rotation,
    behind_layout,
    both_or_none,
    rotary_op,
    rotation_of,
)
from tamiz_passes.sinks import Sinks, constant_sinks
from tamiz_passes.values import Refusal, constant, last_dim, rank

MICROSOFT = "com.microsoft"
#: Numbers of the inputs of a fused op that hold past keys and values.
_PASTS = {
    (MICROSOFT, "GroupQueryAttention"): (3, 4),
    (MICROSOFT, "MultiHeadAttention"): (6, 7),
    ("", "Attention"): (4, 5),
}
#: Inputs that make it another function than tamiz.Attention, by their number.
_REFUSED_INPUTS = {
    (MICROSOFT, "GroupQueryAttention"): {
        9: "positions of its own",
        10: "a bias on the scores",
        12: "scales of a quantised cache",
        13: "scales of a quantised cache",
        14: "norms of queries and keys",
        15: "norms of queries and keys",
    },
    (MICROSOFT, "MultiHeadAttention"): {3: "a bias on queries, keys and values"},
    ("", "Attention"): {6: "lengths of the keys"},
}
#: Attributes that do so, with the value that does not.
_REFUSED_ATTRIBUTES: dict[str, tuple[object, str]] = {
    "rotary_interleaved": (0, "rotates interleaved pairs, expected halves"),
    "interleaved": (0, "rotates interleaved pairs, expected halves"),
    "qk_output": (0, "gives its scores, too"),
    "qk_matmul_output_mode": (0, "gives its scores, too"),
    "kv_cache_bit_width": (0, "quantises its cache"),
    "k_quant_type": ("NONE", "quantises its cache"),
    "v_quant_type": ("NONE", "quantises its cache"),
    "sliding_window_cache": (0, "keeps only the keys of its window"),
}


def is_fused(node: ir.Node) -> bool:
    """Whether a node is an attention of another tool."""
    return (node.domain, node.op_type) in _PASTS


def unpack(graph: GraphEditor, node: ir.Node) -> None:
    """Puts a Split before a GroupQueryAttention that reads q, k and v as one tensor of known
    width."""
    if node.op_type != "GroupQueryAttention" or _input(node, 1) is not None:
        return
    packed = _input(node, 0)
    heads, kv_heads = (node.attributes.get_int(n, 0) for n in ("num_heads", "kv_num_heads"))
    width = None if packed is None else last_dim(packed)
    if packed is None or not kv_heads or width is None or width % (heads + 2 * kv_heads):
        return
    size, leading = width // (heads + 2 * kv_heads), list(packed.shape or ())[:-1]
    parts = []
    for part, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        value = graph.value(f"{packed.name}.{part}", packed)
        value.shape = ir.Shape([*leading, count * size])
        parts.append(value)
    widths = graph.constant(
        f"{packed.name}.widths",
        np.array([heads * size, kv_heads * size, kv_heads * size], np.int64),
    )
    split = ir.node("Split", [packed, widths], {"axis": -1}, outputs=parts)
    split.name = f"{node.name}.split"
    graph.model.graph.insert_before(node, [split])
    for number, value in enumerate(parts):
        node.replace_input_with(number, value)


def find_fused(node: ir.Node) -> Region:
    """The region of a fused attention.

    Raises:
        Refusal: It has parts that tamiz.Attention has not, or no cache.
    """
    query, key, value = _operands(node)
    keys, values = _caches(node, key, value)
    assert keys.new is not None
    assert values.new is not None
    rotations = both_or_none(rotation_before(query), rotation_before(keys.new))
    if node.attributes.get_int("do_rotary", 0):
        rotations = [_rotation_inside(node, v) for v in (query, keys.new)]
    return Region(
        output=joined_output(node.outputs[0]),
        q=heads_source(rotations[0].source if rotations else query),
        k=heads_source(rotations[1].source if rotations else keys.new),
        v=heads_source(values.new),
        keys=keys,
        values=values,
        rotations=rotations,
        sinks=_sinks(node),
        fused=node,
    )


def projections(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Query, key and value of a fused attention of an encoder.

    Raises:
        Refusal: It has parts that tamiz.TextAttention has not, or keeps a past.
    """
    found = _operands(node)
    if any(_input(node, number) is not None for number in _PASTS[node.domain, node.op_type]):
        raise Refusal("it keeps keys and values")
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        raise Refusal("more than its first output is used")
    return found


def mask_inputs(node: ir.Node) -> list[ir.Value]:
    """What a fused attention of an encoder adds to its scores, or hides them by."""
    return [value for value in node.inputs[3:6] if value is not None]


def head_size_of(node: ir.Node, query: ir.Value) -> int:
    """Size of a head of a fused attention.

    Raises:
        Refusal: The graph does not say it.
    """
    size = last_dim(query)
    heads = node.attributes.get_int("num_heads", node.attributes.get_int("q_num_heads", 0))
    if size is None or (rank(query) == 3 and (not heads or size % heads)):
        raise Refusal("the head size is not known")
    return size if rank(query) == 4 else size // heads


def _sinks(node: ir.Node) -> Sinks | None:
    """The sinks of a GroupQueryAttention; a smooth softmax has one of 0."""
    if node.op_type != "GroupQueryAttention":
        return None
    if (value := _input(node, 11)) is not None:
        return constant_sinks(value)
    smooth = node.attributes.get_int("smooth_softmax", 0) > 0
    return Sinks(None, np.zeros(1, np.float32)) if smooth else None


def _operands(node: ir.Node) -> tuple[ir.Value, ir.Value, ir.Value]:
    _check_same(node)
    query, key, value = (_input(node, number) for number in range(3))
    if query is None or key is None or value is None:
        raise Refusal("expected query, key and value")
    return query, key, value


def _input(node: ir.Node, number: int) -> ir.Value | None:
    """An input of a node; None where it is omitted."""
    return node.inputs[number] if len(node.inputs) > number else None


def _check_same(node: ir.Node) -> None:
    for name, (usual, reason) in _REFUSED_ATTRIBUTES.items():
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.value != usual:
            raise Refusal(f"it {reason} ({name} = {attribute.value})")
    for number, what in _REFUSED_INPUTS[node.domain, node.op_type].items():
        if _input(node, number) is not None:
            raise Refusal(f"it has {what}")


def _caches(node: ir.Node, key: ir.Value, value: ir.Value) -> tuple[Cache, Cache]:
    """The caches inside of a fused op, or those that are concatenated before it."""
    numbers = _PASTS[node.domain, node.op_type]
    pasts = [_input(node, number) for number in numbers]
    if pasts[0] is None or pasts[1] is None:
        return cache_of(behind_layout(key), "key"), cache_of(behind_layout(value), "value")
    presents = [*node.outputs[1:3]]
    if len(presents) < 2:
        raise Refusal("it gives no present keys and values")
    for what, past, present in zip(("key", "value"), pasts, presents, strict=True):
        if past is None or not past.is_graph_input() or not present.is_graph_output():
            raise Refusal(f"the {what}'s past and present are not an input and an output")
        if past.dtype != ir.DataType.FLOAT:
            found = past.dtype.name if past.dtype else "unknown"
            raise Refusal(f"the {what}'s past is {found}, expected FLOAT")
        if rank(past) != 4:
            raise Refusal(f"the {what}'s past is not [batch, heads, positions, head size]")
    return Cache(pasts[0], presents[0], key), Cache(pasts[1], presents[1], value)


def rotation_before(value: ir.Value) -> Rotation | None:
    """The rotary embedding in front of a fused op; None where there is none."""
    return rotation_of(value) if rank(value) == 4 else rotary_op(value)


def _rotation_inside(node: ir.Node, source: ir.Value) -> Rotation:
    cos, sin = (_input(node, number) for number in (7, 8))
    if cos is None or sin is None:
        raise Refusal("it rotates without tables")
    if constant(cos) is None or constant(sin) is None:
        raise Refusal("its rotary tables are computed, expected constants")
    return Rotation(source, cos, sin, fused=True)
