"""Linears in a graph: their input, constant weight, dense or packed, bias and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tamiz.api.site import Site
from tamiz.files.errors import TamizError
from tamiz.interface.metadata import DOMAIN

if TYPE_CHECKING:
    import onnx_ir as ir


#: Where a BlockMatMul, and the product of experts, has its bias.
_PACKED_BIAS = 3


@dataclass(frozen=True)
class Linear:
    """A linear site (or an embedding's Gather) in the graph.

    Attributes:
        node: The MatMul, Gemm or Gather, or with a packed weight the BlockMatMul, BlockGather or
            ExpertMatMul.
        input: x ``[..., K]``; of a Gather the ids ``[...]``.
        weight: The constant weight as stored (`Site.transposed` and `Site.format` say how).
        bias: Constant ``[N]`` that is added to the product, None where there is none.
        output: y ``[..., N]``, after the bias; of a Gather ``[..., K]``.
    """

    node: ir.Node
    input: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    output: ir.Value


def constant_weight(value: ir.Value | None) -> tuple[ir.Value, bool] | None:
    """Follows `value` through Identity and 2-D Transpose to the constant that it comes from.

    An initializer that is an input of the graph as well is no constant: a run may set it.

    Returns:
        The initializer, and whether it reaches `value` transposed; None if `value` is computed.
    """
    transposed = False
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == "Transpose" and node.domain == "":
            perm = node.attributes.get("perm")
            if perm is not None and list(perm.as_ints()) != [1, 0]:
                return None
            transposed = not transposed
        elif node.op_type != "Identity" or node.domain != "":
            return None
        value = node.inputs[0]
    return (value, transposed) if value is not None and is_constant(value) else None


def is_constant(value: ir.Value) -> bool:
    """Whether a value is an initializer that no run can set."""
    return value.is_initializer() and value.const_value is not None and not value.is_graph_input()


def linear_at(node: ir.Node) -> Linear:
    """The linear or embedding that `node` computes; see `Linear`.

    Raises:
        TamizError: If the node has no constant weight.
    """
    data, weights = (1, 0) if node.op_type == "Gather" else (0, 1)
    source = constant_weight(node.inputs[weights])
    x = node.inputs[data]
    if source is None or x is None:
        raise TamizError(f"node {node.name!r} ({node.op_type}): expected a constant weight")
    output = node.outputs[0]
    if stored_format(node) is not None or is_of_experts(node):
        bias = node.inputs[_PACKED_BIAS] if len(node.inputs) > _PACKED_BIAS else None
        return Linear(node, x, source[0], bias, output)
    if node.op_type == "Gemm":
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        return Linear(node, x, source[0], bias, output)
    add = _bias_add(output) if node.op_type == "MatMul" else None
    if add is None:
        return Linear(node, x, source[0], None, output)
    bias = add.inputs[0] if add.inputs[1] is output else add.inputs[1]
    return Linear(node, x, source[0], bias, add.outputs[0])


def stored_format(node: ir.Node) -> str | None:
    """Name of the format of a product or lookup whose weight is packed as its source stores it."""
    if node.domain != DOMAIN or node.op_type not in ("BlockMatMul", "BlockGather"):
        return None
    attribute = node.attributes.get("format")
    return None if attribute is None else attribute.as_string()


def is_of_experts(node: ir.Node) -> bool:
    """Whether a node is the product with the experts that each token takes."""
    return (node.domain, node.op_type) == (DOMAIN, "ExpertMatMul")


def experts_of(node: ir.Node) -> tuple[int, int]:
    """How many experts a product has, and how many of them a token takes; 0 of other nodes."""
    if not is_of_experts(node):
        return 0, 0
    count, chosen = node.attributes["experts"].as_int(), node.inputs[2]
    top = None if chosen is None or chosen.shape is None else chosen.shape[-1]
    return count, top if isinstance(top, int) else count


def _bias_add(product: ir.Value) -> ir.Node | None:
    """The Add that alone consumes `product` and adds a constant [N] to it."""
    consumers = product.consumers()
    if len(consumers) != 1 or product.is_graph_output():
        return None
    add = consumers[0]
    before = product.producer()
    # In a branch, the Add is of another graph; before opset 7 its axis is an attribute.
    inside = before is not None and add.graph is before.graph and not add.attributes
    if (add.domain, add.op_type) != ("", "Add") or not inside:
        return None
    other = add.inputs[0] if add.inputs[1] is product else add.inputs[1]
    if other is None or not is_constant(other) or other.shape is None:
        return None
    if product.shape is None or len(other.shape) != 1 or other.shape[0] != product.shape[-1]:
        return None
    return add


def weight_array(linear: Linear, site: Site) -> np.ndarray:
    """The weight of `site` as float32 ``[N, K]``.

    Returns:
        A read-only view of the mapped file where the weight is external; it may be strided. The
        values of a packed weight are computed.
    """
    assert linear.weight.const_value is not None
    if site.format is not None:
        return unpacked_rows(linear.weight.const_value.numpy(), site)
    array = np.asarray(linear.weight.const_value.numpy(), dtype=np.float32)
    return array if site.transposed else array.T


def unpacked_rows(packed: np.ndarray, site: Site) -> np.ndarray:
    """The float32 values ``[N, K]`` of the packed weight of `site`."""
    from tamiz_ops import formats

    assert site.format is not None
    format = formats.find_format(site.format)
    return formats.dequantize(format, packed, site.out_features, site.in_features)
