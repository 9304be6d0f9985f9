"""Which products are linears that a technique can act on, and why others are none."""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import STAYS, constant_weight, is_constant
from tamiz_passes.values import LAYOUT, last_dim, producer, rank, too_deep

#: Ops that hold weights which another tool has quantised.
_CARRIERS = frozenset(
    {
        *("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "GatherBlockQuantized", "QMoE"),
        *("MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"),
        *("QLinearMatMul", "QLinearConv", "ConvInteger", "QGemm", "QAttention"),
        *("QEmbedLayerNormalization", "QOrderedMatMul"),
    }
)
#: Those that round their input to 8 bits, too.
_ROUNDING = _CARRIERS - {"MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "GatherBlockQuantized", "QMoE"}
_QUANTISED = (
    "has a weight that another tool quantised, and stays as it is; export the model unquantised to "
    "optimise it."
)
_ROUNDED = (
    "has a weight that another tool quantised, and stays as it is: it also rounds its input to 8 "
    "bits, which no op of tamiz does in the same way; export the model unquantised to optimise it."
)


def no_linear(node: ir.Node) -> str | None:
    """Why a MatMul or Gemm is no linear site, as a sentence; None if it is one."""
    source = constant_weight(node.inputs[1])
    if STAYS in node.metadata_props:
        return _stays(node)
    if source is None:
        return _no_constant(node)
    weight = source[0]
    if rank(weight) != 2:
        return f"The weight {weight.name} has shape {weight.shape}, expected [K, N]."
    if weight.dtype != ir.DataType.FLOAT:
        found = weight.dtype.name if weight.dtype is not None else "unknown"
        return f"The weight {weight.name} is {found}, expected FLOAT."
    if weight.shape is None or 0 in weight.shape:
        return f"The weight {weight.name} has shape {weight.shape}, expected elements."
    if node.op_type == "Gemm":
        return _no_gemm_site(node, weight)
    return too_deep(node.inputs[0])


def _no_constant(node: ir.Node) -> str:
    """Why the second operand of a product is no constant weight."""
    first, second = node.inputs[0], node.inputs[1]
    if first is not None and constant_weight(first) is not None:
        return "The constant is the first operand, expected the second."
    if second is not None and second.is_graph_input() and second.is_initializer():
        return f"The weight {second.name} is an input of the graph, so a run may set it."
    before = producer(_through_layout(second), "DequantizeLinear")
    if before is not None:
        return f"Its weight comes from DequantizeLinear: it {_QUANTISED}"
    return "Both operands are computed."


def _through_layout(value: ir.Value | None) -> ir.Value | None:
    while (node := producer(value, *LAYOUT, "Cast")) is not None:
        value = node.inputs[0]
    return value


def _no_gemm_site(node: ir.Node, weight: ir.Value) -> str | None:
    for name, expected in (("transA", 0), ("alpha", 1.0), ("beta", 1.0)):
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.value != expected:
            return f"Gemm has {name} = {attribute.value}, expected {expected}."
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if bias is not None and (not is_constant(bias) or rank(bias) != 1):
        return "Gemm adds something else than a constant vector."
    by_rows = node.attributes.get_int("transB", 0) == 1
    source = constant_weight(node.inputs[1])
    assert source is not None
    assert weight.shape is not None
    outputs = weight.shape[0 if source[1] != by_rows else 1]
    if bias is not None and last_dim(bias) != outputs:
        return f"Gemm adds a vector of {last_dim(bias)} elements, expected {outputs}."
    return None


def quantized_before(node: ir.Node) -> str | None:
    """Why a node with a weight that another tool quantised is no site; None of other nodes."""
    if node.domain in ("", "com.microsoft") and node.op_type in _CARRIERS:
        if STAYS in node.metadata_props:
            return _stays(node)
        return f"{node.op_type} {_ROUNDED if node.op_type in _ROUNDING else _QUANTISED}"
    return None


def _stays(node: ir.Node) -> str:
    """Why the exporter left a node as it is."""
    return (
        f"The weight of {node.op_type}, which another tool stored, {node.metadata_props[STAYS]}, "
        "so that it stays as it is."
    )
