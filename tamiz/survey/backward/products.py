"""The backward pass through products.

Each function takes a node, values of the graph by name and the gradient at the node's output, and
gives the gradients at its inputs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tamiz.survey.backward.node import (
    Float,
    Gradients,
    UnknownOpError,
    Values,
    attributes_of,
    constant,
    is_constant,
    like,
    rank,
    read,
)

if TYPE_CHECKING:
    import onnx_ir as ir

_PRODUCTS = {("", "MatMul"), ("", "Gemm"), ("tamiz", "BlockMatMul")}
#: Rows of a packed weight that are float32 at a time.
_ROWS = 4096


def has_weight(node: ir.Node) -> bool:
    """Whether a node multiplies with one constant matrix."""
    known = (node.domain, node.op_type) in _PRODUCTS and is_constant(node.inputs[1])
    return known and (node.op_type != "MatMul" or rank(node.inputs[1]) == 2)


def matmul(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a b, over the last two dimensions; b is often a constant weight, or one by expert."""
    if has_weight(node):
        return [g @ constant(node.inputs[1]).T, None]
    a, b = (read(node, i, values) for i in range(2))
    of_a = like(g @ np.swapaxes(b, -1, -2), a.shape)
    if is_constant(node.inputs[1]):
        return [of_a, None]
    return [of_a, like(np.swapaxes(a, -1, -2) @ g, b.shape)]


def gemm(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x W (+ bias), or x Wᵀ."""
    weight = constant(node.inputs[1])
    if (transposed := node.attributes.get("transB")) is not None and transposed.as_int():
        weight = weight.T
    return [g @ weight.T]


def block_matmul(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x Wᵀ (+ bias), W ``[n, k]`` packed in the format of its source."""
    from tamiz_ops import formats

    own, packed = attributes_of(node), node.inputs[1]
    if set(own) != {"format", "n", "k"} or packed is None or packed.const_value is None:
        raise UnknownOpError(f"{node.name}, whose weight is not as its source stores it")
    weight = packed.const_value.numpy()
    format = formats.find_format(own["format"])
    result = np.zeros((*g.shape[:-1], own["k"]), np.float32)
    for begin in range(0, own["n"], _ROWS):
        rows = slice(begin, begin + _ROWS)
        result += g[..., rows] @ formats.dequantize(format, weight, own["n"], own["k"], rows)
    return [result]
