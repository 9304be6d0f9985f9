"""Attention of the domain `tamiz` in standard ops.

    present = concat(past, rotate(k) | v)
    y       = softmax(scale · (w · rotate(q)) · present_keyᵀ + mask) · present_value

w is the weight of each element of a query, or 1. With sinks they are a last column of the scores,
whose weights are cut away. Slopes of heads are times the column of the key, as softmax takes that
of the query away.

Query heads that share a key head stand in a dimension of their own, so no key is copied.
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api.ports import attribute_of, input_of
from tamiz.survey.standard.nodes import Nodes, NoStandardFormError, needed

#: Inputs of techniques, which have no standard form.
_REFUSED = (
    "past_sketch",
    "key_mean",
    "past_event",
    "without_window",
    "without_choice",
    "key_scale",
)
_FAR = -3.4028234663852886e38


def attention(nodes: Nodes) -> None:
    """Puts standard ops in place of an Attention.

    Raises:
        NoStandardFormError: It is that of a technique.
    """
    node = nodes.at
    _check(node)
    heads, kv_heads = attribute_of(node, "num_heads"), attribute_of(node, "kv_heads")
    query = _heads(nodes, needed(node, "q"), heads)
    key = _heads(nodes, needed(node, "k"), kv_heads)
    value = _heads(nodes, needed(node, "v"), kv_heads)
    if (frequency := input_of(node, "inverse_frequency")) is not None:
        tables = _tables(nodes, frequency)
        query, key = (_rotated(nodes, x, tables, frequency) for x in (query, key))
    if (weight := input_of(node, "query_weight")) is not None:
        query = nodes.op("Mul", query, weight)
    keys = nodes.op("Concat", needed(node, "past_key"), key, axis=2)
    values = nodes.op("Concat", needed(node, "past_value"), value, axis=2)
    size = _head_size(node)
    scores = _scores(nodes, _grouped(nodes, query, heads, kv_heads, size), keys)
    masked = nodes.op("Add", scores, _mask(nodes))
    if (slopes := input_of(node, "head_slope")) is not None:
        by_head = nodes.op("Reshape", slopes, nodes.integers(1, kv_heads, -1, 1, 1))
        masked = nodes.op("Add", masked, nodes.op("Mul", by_head, _places(nodes)))
    weights = _weights(nodes, masked)
    sums = nodes.op("MatMul", weights, nodes.op("Unsqueeze", values, nodes.integers(2)))
    turned = nodes.op("Transpose", sums, perm=[0, 3, 1, 2, 4])
    nodes.replace(nodes.op("Reshape", turned, nodes.integers(0, 0, heads * size)), keys, values)


def _weights(nodes: Nodes, scores: ir.Value) -> ir.Value:
    """The softmax of ``[B, Hkv, group, S, T]``."""
    node = nodes.at
    if (sinks := input_of(node, "head_sink")) is None:
        return nodes.op("Softmax", scores, axis=-1)
    kv_heads = attribute_of(node, "kv_heads")
    by_head = nodes.op("Reshape", sinks, nodes.integers(1, kv_heads, -1, 1, 1))
    first = nodes.op("Gather", nodes.op("Shape", scores), nodes.integers(0, 1, 2, 3), axis=0)
    shape = nodes.op("Concat", first, nodes.integers(1), axis=0)
    column = nodes.op("Expand", by_head, shape)
    weights = nodes.op("Softmax", nodes.op("Concat", scores, column, axis=-1), axis=-1)
    bounds = (nodes.integers(number) for number in (0, -1, -1))
    return nodes.op("Slice", weights, *bounds)


def _check(node: ir.Node) -> None:
    for port in _REFUSED:
        if input_of(node, port) is not None:
            raise NoStandardFormError(f"with {port} ")
    if attribute_of(node, "cache_bits") != 32:
        raise NoStandardFormError("with a cache of 8 bits ")
    if attribute_of(node, "window") and attribute_of(node, "sinks"):
        raise NoStandardFormError("with a window that keeps the first keys ")


def _head_size(node: ir.Node) -> int:
    past = needed(node, "past_key")
    size = None if past.shape is None else past.shape[3]
    if not isinstance(size, int):
        raise NoStandardFormError("with a cache of unknown head size ")
    return size


def _heads(nodes: Nodes, x: ir.Value, heads: int) -> ir.Value:
    """``[B, S, H·D]`` as ``[B, H, S, D]``."""
    size = _head_size(nodes.at)
    split = nodes.op("Reshape", x, nodes.integers(0, 0, heads, size))
    return nodes.op("Transpose", split, perm=[0, 2, 1, 3])


def _tables(nodes: Nodes, frequency: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Cosines and sines ``[B, 1, S, R]``, shared by the layers that turn alike."""
    node = nodes.at
    positions, factor = needed(node, "position_ids"), attribute_of(node, "rotary_scale")

    def make() -> tuple[ir.Value, ir.Value]:
        places = nodes.op("Cast", positions, to=int(ir.DataType.FLOAT))
        columns = nodes.op("Unsqueeze", places, nodes.integers(1, 3))
        half = nodes.op("Mul", columns, frequency)
        angle = nodes.op("Concat", half, half, axis=-1)
        found = [nodes.op("Cos", angle), nodes.op("Sin", angle)]
        if factor != 1:
            found = [nodes.op("Mul", table, nodes.floats(factor)) for table in found]
        return found[0], found[1]

    return nodes.shared(("tables", id(positions), id(frequency), factor), make)


def _rotated(
    nodes: Nodes, x: ir.Value, tables: tuple[ir.Value, ir.Value], frequency: ir.Value
) -> ir.Value:
    """x cos + concat(-x₂, x₁) sin of the first R dimensions, as exporters write it."""
    assert frequency.shape is not None
    half, size = int(frequency.shape.numpy()[0]), _head_size(nodes.at)

    def part(source: ir.Value, begin: int, end: int) -> ir.Value:
        bounds = (nodes.integers(number) for number in (begin, end, -1))
        return nodes.op("Slice", source, *bounds)

    first = x if size == 2 * half else part(x, 0, 2 * half)
    low, high = part(first, 0, half), part(first, half, 2 * half)
    crossed = nodes.op("Concat", nodes.op("Neg", high), low, axis=-1)
    straight = nodes.op("Mul", first, tables[0])
    turned = nodes.op("Add", straight, nodes.op("Mul", crossed, tables[1]))
    return turned if first is x else nodes.op("Concat", turned, part(x, 2 * half, size), axis=-1)


def _grouped(nodes: Nodes, query: ir.Value, heads: int, kv_heads: int, size: int) -> ir.Value:
    """``[B, Hkv, group, S, D]``."""
    group = heads // kv_heads
    return nodes.op("Reshape", query, nodes.integers(0, kv_heads, group, -1, size))


def _scores(nodes: Nodes, query: ir.Value, keys: ir.Value) -> ir.Value:
    """``[B, Hkv, group, S, T]``."""
    node = nodes.at
    turned = nodes.op("Transpose", keys, perm=[0, 1, 3, 2])
    product = nodes.op("MatMul", query, nodes.op("Unsqueeze", turned, nodes.integers(2)))
    scale = attribute_of(node, "scale") or _head_size(node) ** -0.5
    scores = nodes.op("Mul", product, nodes.floats(scale))
    if not (cap := attribute_of(node, "softcap")):
        return scores
    bounded = nodes.op("Tanh", nodes.op("Div", scores, nodes.floats(cap)))
    return nodes.op("Mul", bounded, nodes.floats(cap))


def _mask(nodes: Nodes) -> ir.Value:
    """0 where a query sees a key, else far below all scores: ``[B, 1, 1, S, T]``."""
    node = nodes.at
    mask, ids = needed(node, "attention_mask"), needed(node, "position_ids")
    window = attribute_of(node, "window")

    def make() -> ir.Value:
        total = nodes.op("Gather", nodes.op("Shape", mask), nodes.integers(1), axis=0)
        new = nodes.op("Gather", nodes.op("Shape", ids), nodes.integers(1), axis=0)
        zero, one = nodes.integers(0), nodes.integers(1)
        count, first = (nodes.op("Squeeze", x, zero) for x in (total, nodes.op("Sub", total, new)))
        begin, step = (nodes.op("Squeeze", x, zero) for x in (zero, one))
        keys, queries = (nodes.op("Range", x, count, step) for x in (begin, first))
        before = nodes.op("LessOrEqual", keys, nodes.op("Unsqueeze", queries, one))
        shown = nodes.op("Cast", mask, to=int(ir.DataType.BOOL))
        visible = nodes.op("And", before, nodes.op("Unsqueeze", shown, one))
        if window:
            visible = nodes.op("And", visible, _near(nodes, mask, queries, window))
        bias = nodes.op("Where", visible, nodes.floats(0.0), nodes.floats(_FAR))
        return nodes.op("Unsqueeze", bias, nodes.integers(1, 2))

    return nodes.shared(("mask", id(mask), id(ids), window), make)


def _places(nodes: Nodes) -> ir.Value:
    """The columns of keys ``[T]``: softmax takes the distance of the query away."""
    mask = needed(nodes.at, "attention_mask")

    def make() -> ir.Value:
        total = nodes.op("Gather", nodes.op("Shape", mask), nodes.integers(1), axis=0)
        bounds = (nodes.op("Squeeze", x, nodes.integers(0)) for x in (total, nodes.integers(1)))
        count, step = bounds
        begin = nodes.op("Squeeze", nodes.integers(0), nodes.integers(0))
        return nodes.op("Cast", nodes.op("Range", begin, count, step), to=int(ir.DataType.FLOAT))

    return nodes.shared(("places", id(mask)), make)


def _near(nodes: Nodes, mask: ir.Value, queries: ir.Value, window: int) -> ir.Value:
    """Whether a key is one of the last visible ones of a query, ``[B, S, T]``."""
    ranks = nodes.op("CumSum", mask, nodes.whole(1))
    own = nodes.op("Unsqueeze", nodes.op("Gather", ranks, queries, axis=1), nodes.integers(2))
    least = nodes.op("Sub", own, nodes.integers(window))
    return nodes.op("Greater", nodes.op("Unsqueeze", ranks, nodes.integers(1)), least)
