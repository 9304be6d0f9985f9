"""Writes fused ops of ONNX Runtime as the standard ops that they stand for.

Exporters write these; other passes, and the search for sites, know them.

    BiasGelu(x, b)           gelu(x + b),  gelu(x) = x/2 · (1 + erf(x / √2))
    Gelu(x)                  gelu(x)
    FastGelu(x, b)           x' / 2 · (1 + tanh(√(2/π) · (x' + 0.044715 x'³))),  x' = x + b
    QuickGelu(x)             x · sigmoid(α x)
    FusedMatMul(a, b)        α · a · b, transposed or not
    EmbedLayerNormalization  norm(words[ids] + positions[i] + types[segments])
    Attention(x, W, b)       MultiHeadAttention of three linears
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tamiz.api import GraphEditor, GraphPass, Phase, is_constant
from tamiz_passes.expansion import Expansion
from tamiz_passes.values import Refusal, last_dim, producer, rank

_MICROSOFT = "com.microsoft"
#: LayerNormalization is an op of ONNX from this opset on.
_LAYER_NORM = 17


class PlainOps(GraphPass):
    """Takes fused ops of ONNX Runtime apart; it fuses them again when it loads a model."""

    name = "plain-ops"
    phase = Phase.RECOGNISE
    needs = frozenset({"clean"})
    provides = frozenset({"plain"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        for node in list(model.graph):
            expand = _EXPAND.get(node.op_type) if node.domain == _MICROSOFT else None
            if expand is None:
                continue
            try:
                expand(Expansion(GraphEditor(model), node))
                modified = True
            except Refusal as refusal:
                self.note(node, refusal.sentence)
        if modified:
            from tamiz_passes.shapes import infer_shapes

            model.graph.sort()
            infer_shapes(model)
        return ir.passes.PassResult(model, modified=modified)


def _given(new: Expansion, number: int) -> ir.Value | None:
    inputs = new.node.inputs
    return inputs[number] if len(inputs) > number else None


def _needed(new: Expansion, number: int) -> ir.Value:
    value = _given(new, number)
    if value is None:
        raise Refusal(f"{new.node.op_type} lacks its input {number}")
    return value


def _biased(new: Expansion) -> ir.Value:
    x, bias = _needed(new, 0), _given(new, 1)
    _check_float(new, x)
    return x if bias is None else new.op("Add", [x, bias], like=x)


def _check_float(new: Expansion, x: ir.Value) -> None:
    if x.dtype != ir.DataType.FLOAT:
        found = x.dtype.name if x.dtype is not None else "an unknown type"
        raise Refusal(f"{new.node.op_type} works on {found}, expected FLOAT")


def _gelu(new: Expansion) -> None:
    x = _biased(new)
    inner = new.op("Div", [x, new.number("gelu.root", 2**0.5)], like=x)
    error = new.op("Add", [new.op("Erf", [inner], like=x), new.number("gelu.one", 1)], like=x)
    product = new.op("Mul", [x, error], like=x)
    y = new.op("Mul", [product, new.number("gelu.half", 0.5)], like=x)
    new.finish((new.node.outputs[0], y))


def _fast_gelu(new: Expansion) -> None:
    x = _biased(new)
    cube = new.op("Pow", [x, new.number("gelu.three", 3)], like=x)
    cube = new.op("Mul", [cube, new.number("gelu.cubic", 0.044715)], like=x)
    inner = new.op("Add", [x, cube], like=x)
    inner = new.op("Mul", [inner, new.number("gelu.scale", (2 / np.pi) ** 0.5)], like=x)
    tanh = new.op("Tanh", [inner], like=x)
    more = new.op("Add", [tanh, new.number("gelu.one", 1)], like=x)
    half = new.op("Mul", [x, new.number("gelu.half", 0.5)], like=x)
    new.finish((new.node.outputs[0], new.op("Mul", [half, more], like=x)))


def _quick_gelu(new: Expansion) -> None:
    x, alpha = _needed(new, 0), new.node.attributes.get_float("alpha", 1.702)
    _check_float(new, x)
    inner = x
    if alpha != 1:
        inner = new.op("Mul", [x, new.number("quick_gelu.alpha", alpha)], like=x)
    y = new.op("Mul", [x, new.op("Sigmoid", [inner], like=x)], like=x)
    new.finish((new.node.outputs[0], y))


def _fused_matmul(new: Expansion) -> None:
    attributes = new.node.attributes
    if attributes.get_int("transBatchA", 0) or attributes.get_int("transBatchB", 0):
        raise Refusal("FusedMatMul turns its batch dimensions")
    sides = []
    for number, name in enumerate(("transA", "transB")):
        value = _needed(new, number)
        _check_float(new, value)
        if attributes.get_int(name, 0):
            value = _turned(new, value)
        sides.append(value)
    y = new.op("MatMul", sides, like=new.node.outputs[0])
    alpha = attributes.get_float("alpha", 1.0)
    if alpha != 1:
        y = new.op("Mul", [y, new.number("product.factor", alpha)], like=y)
    new.finish((new.node.outputs[0], y))


def _turned(new: Expansion, value: ir.Value) -> ir.Value:
    """Swaps the last two dimensions."""
    count = rank(value)
    if count is None or count < 2 or value.shape is None:
        raise Refusal(f"the rank of {value.name}, which FusedMatMul transposes, is not known")
    perm = [*range(count - 2), count - 1, count - 2]
    turned = new.op("Transpose", [value], {"perm": perm}, value)
    turned.shape = ir.Shape([value.shape[axis] for axis in perm])
    return turned


def _embed(new: Expansion) -> None:
    node = new.node
    if new.graph.model.graph.opset_imports.get("", 1) < _LAYER_NORM:
        raise Refusal(f"LayerNormalization is no op of this opset, expected {_LAYER_NORM} or later")
    ids, segments, positions = _needed(new, 0), _given(new, 1), _given(new, 8)
    words = new.op("Gather", [_needed(new, 2), _wide(ids)])
    if positions is None:
        length = new.op("Squeeze", [new.op("Shape", [ids], {"start": 1, "end": 2})])
        zero, one = (new.graph.constant(f"embed.{n}", np.array(n)) for n in (0, 1))
        placed = new.op("Gather", [_needed(new, 3), new.op("Range", [zero, length, one])])
    else:
        placed = new.op("Gather", [_needed(new, 3), _wide(positions)])
    total = new.op("Add", [words, placed])
    if segments is not None:
        total = new.op("Add", [total, new.op("Gather", [_needed(new, 4), _wide(segments)])])
    inputs = [total, _needed(new, 5), _needed(new, 6)]
    attributes = {"axis": -1, "epsilon": new.node.attributes.get_float("epsilon", 1e-12)}
    y = new.op("LayerNormalization", inputs, attributes)
    pairs = [(node.outputs[0], y)]
    if len(node.outputs) > 1 and _is_read(node.outputs[1]):
        pairs.append((node.outputs[1], _lengths(new, ids, _given(new, 7))))
    pairs += [(value, total) for value in node.outputs[2:3] if _is_read(value)]
    new.finish(*pairs)


def _lengths(new: Expansion, ids: ir.Value, mask: ir.Value | None) -> ir.Value:
    """How many tokens of each row the mask shows, int32 ``[B]``; 0 without a mask."""
    axis = new.graph.constant("embed.axis", np.array([1]))
    one, zero = (new.graph.constant(f"embed.is.{n}", np.array(n, np.int32)) for n in (1, 0))
    if mask is None:
        narrow = new.op("Cast", [ids], {"to": int(ir.DataType.INT32)})
        shown = new.op("Mul", [narrow, zero])
    else:
        same = new.op("Equal", [mask, one])
        shown = new.op("Cast", [same], {"to": int(ir.DataType.INT32)})
    return new.op("ReduceSum", [shown, axis], {"keepdims": 0})


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _wide(ids: ir.Value) -> ir.Value:
    """Ids before they were cast to 32 bits."""
    cast = producer(ids, "Cast")
    source = cast.inputs[0] if cast is not None else None
    return source if source is not None and source.dtype == ir.DataType.INT64 else ids


def _attention(new: Expansion) -> None:
    node, x, weight = new.node, _needed(new, 0), _needed(new, 1)
    _check_float(new, x)
    if any(_given(new, number) is not None for number in (4, 6)):
        raise Refusal("com.microsoft.Attention has keys and values in one cache")
    rotates = node.attributes.get_int("do_rotary", 0)
    if rotates or not is_constant(weight) or weight.shape is None:
        raise Refusal("com.microsoft.Attention rotates, or its weight is computed")
    mask = _given(new, 3)
    if mask is not None and rank(mask) not in (1, 2):
        raise Refusal("com.microsoft.Attention has a mask that is not [batch] or [batch, keys]")
    width = last_dim(weight)
    parts = list(node.attributes.get_ints("qkv_hidden_sizes", [(width or 0) // 3] * 3))
    if width is None or sum(parts) != width:
        raise Refusal("the width of its weight is not known")
    product = new.op("MatMul", [x, weight], like=x)
    shape = list(x.shape)[:-1] if x.shape is not None else [None, None]
    product.shape = ir.Shape([*shape, width])
    if (bias := _given(new, 2)) is not None:
        product = new.op("Add", [product, bias], like=product)
    queries = _split(new, product, parts)
    kept = ("num_heads", "scale", "mask_filter_value", "unidirectional")
    attributes = {name: node.attributes[name].value for name in kept if name in node.attributes}
    y = new.op(
        "MultiHeadAttention",
        [*queries, None, mask, _given(new, 5)],
        attributes,
        queries[2],
        domain=_MICROSOFT,
    )
    new.finish((node.outputs[0], y))


def _split(new: Expansion, value: ir.Value, parts: list[int]) -> list[ir.Value]:
    assert value.shape is not None
    widths = new.graph.constant("attention.widths", np.array(parts, np.int64))
    made = []
    for number, size in enumerate(parts):
        part = new.graph.value(f"{value.name}.part.{number}", value)
        part.shape = ir.Shape([*list(value.shape)[:-1], size])
        made.append(part)
    name = f"{new.node.name}.split"
    new.graph.insert(new.node, name, "Split", [value, widths], {"axis": -1}, made, domain="")
    return made


_EXPAND: dict[str, Callable[[Expansion], None]] = {
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _fused_matmul,
    "EmbedLayerNormalization": _embed,
    "Attention": _attention,
}
