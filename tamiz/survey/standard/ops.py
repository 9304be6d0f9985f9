"""Writes ops of the domain `tamiz` as standard ones.

    BlockGather(ids, W)           Gather(W', ids), or GatherBlockQuantized
    BlockMatMul(x, W, bias)       MatMul(x, W') + bias, or MatMulNBits
    RMSNorm(x, w, residual)       s / sqrt(mean(s²) + ε) · w,   s = x + residual
    LayerNorm(x, w, b, residual)  LayerNormalization(x + residual, w, b)
    Sum(x, residual)              x + residual
    SwiGLU(gate, up)              f(gate) · up, clamped where it has a limit; see `activations`
    LastPositions(x)              x: logits of all positions
    Attention                     `attention`

Weights have the values that the bundle stores, bit for bit; products round in other places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tamiz.api.ports import attribute_of, input_of
from tamiz.survey.standard.activations import activated
from tamiz.survey.standard.attention import attention
from tamiz.survey.standard.nodes import Nodes, NoStandardFormError, needed
from tamiz.survey.standard.weights import Packed, Quantized, dense

MICROSOFT = "com.microsoft"
#: Opset from which ONNX has LayerNormalization.
_LAYER_NORM = 17


def write_node(nodes: Nodes, *, quantized: bool) -> None:
    """Puts standard ops in place of the node.

    Args:
        nodes: Adds nodes before the one to replace.
        quantized: Whether weights may become those of MatMulNBits and GatherBlockQuantized.

    Raises:
        NoStandardFormError: It has none.
    """
    node = nodes.at
    if node.op_type in _PACKED:
        _PACKED[node.op_type](nodes, quantized)
    elif node.op_type in _OTHERS:
        _OTHERS[node.op_type](nodes)
    else:
        raise NoStandardFormError("")


def _lookup(nodes: Nodes, quantized: bool) -> None:
    packed, ids = Packed.of(nodes.at), needed(nodes.at, "ids")
    held = Quantized.of(packed) if quantized else None
    if held is None or not _can_be_looked_up(held, packed.k):
        y = nodes.op("Gather", dense(nodes, packed, rows=True), ids, axis=0)
    else:
        shape = (packed.n, held.blocks * held.block * held.bits // 8)
        quants, scales, zeros = held.constants(nodes, shape)
        given = [quants, ids, scales, *([] if zeros is None else [zeros])]
        attributes = {"bits": held.bits, "block_size": held.block}
        attributes |= {"gather_axis": 0, "quantize_axis": 1}
        y = nodes.op("GatherBlockQuantized", *given, domain=MICROSOFT, **attributes)
    nodes.widths[y] = packed.k
    nodes.replace(y)


def _can_be_looked_up(held: Quantized, k: int) -> bool:
    """Whether GatherBlockQuantized holds a table of k columns.

    It takes neither 2 bits nor float zero points, and whole blocks only. Before version 1.27 ONNX
    Runtime reads other zero points where a row of them ends within a byte.
    """
    cut = held.zeros == "bytes" and held.blocks * held.bits % 8 != 0
    return held.bits != 2 and held.zeros != "floats" and k % held.block == 0 and not cut


def _product(nodes: Nodes, quantized: bool) -> None:
    if input_of(nodes.at, "mask") is not None:
        raise NoStandardFormError("with a mask of inputs ")
    packed, x, bias = Packed.of(nodes.at), needed(nodes.at, "x"), input_of(nodes.at, "bias")
    held = Quantized.of(packed) if quantized else None
    if held is None:
        y = nodes.op("MatMul", x, dense(nodes, packed, rows=False))
    else:
        shape = (packed.n, held.blocks, held.block * held.bits // 8)
        quants, scales, zeros = held.constants(nodes, shape)
        given = [x, quants, scales, *([] if zeros is None else [zeros])]
        attributes = {"K": packed.k, "N": packed.n, "bits": held.bits, "block_size": held.block}
        y = nodes.op("MatMulNBits", *given, domain=MICROSOFT, **attributes, accuracy_level=0)
    y = y if bias is None else nodes.op("Add", y, bias)
    nodes.widths[y] = packed.n
    nodes.replace(y)


def _norm(nodes: Nodes) -> None:
    node = nodes.at
    s, weight, residual = needed(node, "x"), needed(node, "weight"), input_of(node, "residual")
    if residual is not None:
        s = nodes.op("Add", s, residual)
    assert weight.shape is not None
    size, width = int(weight.shape.numpy()[0]), nodes.width(needed(node, "x"))
    # Heads lie side by side in the last dimension, which is a number of sizes.
    grouped = s if size == width else nodes.op("Reshape", s, nodes.integers(0, 0, -1, size))
    squares = nodes.mean(nodes.op("Mul", grouped, grouped))
    raised = nodes.op("Add", squares, nodes.floats(attribute_of(node, "epsilon")))
    normed = nodes.op("Mul", nodes.op("Div", grouped, nodes.op("Sqrt", raised)), weight)
    y = normed if size == width else nodes.op("Reshape", normed, nodes.integers(0, 0, -1))
    if width is not None:
        nodes.widths |= {y: width, s: width}
    nodes.replace(y, s)


def _gated(nodes: Nodes) -> None:
    gate, up = needed(nodes.at, "gate"), input_of(nodes.at, "up")
    if up is None:
        nodes.replace(activated(nodes, gate))
        return
    if limit := attribute_of(nodes.at, "limit"):
        most, least = nodes.floats(limit), nodes.floats(-limit)
        gate = nodes.op("Min", gate, most)
        up = nodes.op("Add", nodes.op("Clip", up, least, most), nodes.floats(1.0))
    nodes.replace(nodes.op("Mul", activated(nodes, gate), up))


def _layer_norm(nodes: Nodes) -> None:
    node = nodes.at
    s, residual = needed(node, "x"), input_of(node, "residual")
    if nodes.model.graph.opset_imports.get("", 0) < _LAYER_NORM:
        raise NoStandardFormError(f"before opset {_LAYER_NORM} ")
    if residual is not None:
        s = nodes.op("Add", s, residual)
    bias, epsilon = input_of(node, "bias"), attribute_of(node, "epsilon")
    # Without a bias and with a name of none for it, ONNX Runtime 1.2x crashes where it fuses sums.
    given = [s, needed(node, "weight"), *([] if bias is None else [bias])]
    y = nodes.op("LayerNormalization", *given, axis=-1, epsilon=epsilon)
    if (width := nodes.width(needed(node, "x"))) is not None:
        nodes.widths |= {y: width, s: width}
    nodes.replace(y, s)


def _sum(nodes: Nodes) -> None:
    nodes.replace(nodes.op("Add", needed(nodes.at, "x"), needed(nodes.at, "residual")))


def _all_positions(nodes: Nodes) -> None:
    nodes.replace(needed(nodes.at, "x"))


_PACKED: Mapping[str, Callable[[Nodes, bool], None]] = {
    "BlockGather": _lookup,
    "BlockMatMul": _product,
}
_OTHERS: Mapping[str, Callable[[Nodes], None]] = {
    "RMSNorm": _norm,
    "LayerNorm": _layer_norm,
    "Sum": _sum,
    "SwiGLU": _gated,
    "LastPositions": _all_positions,
    "Attention": attention,
}
