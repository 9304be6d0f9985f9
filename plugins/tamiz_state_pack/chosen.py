"""Lets a product of int4 compute only what a mask keeps, and read only the weights of that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tamiz_ops
from tamiz.api import GraphEditor, attribute_of, input_of

if TYPE_CHECKING:
    import onnx_ir as ir

RELUS = ("relu", "relu2")
#: Inputs that a weight packed by output is padded to: other weights would become larger.
RECORD_INPUTS = 512


def is_plain_int4(product: ir.Node) -> bool:
    """Whether a BlockMatMul has a constant weight of int4, 16-bit inputs and no mask."""
    weight = input_of(product, "weight")
    if weight is None or weight.const_value is None or input_of(product, "mask") is not None:
        return False
    return bool(
        attribute_of(product, "bits") == 4 and attribute_of(product, "activation_bits") == 16
    )


def choose_outputs(graph: GraphEditor, product: ir.Node, mask: ir.Value) -> ir.Node:
    """Puts ChosenMatMul where a product of int4 stands; its weight is packed by output.

    Args:
        graph: The graph.
        product: A BlockMatMul for which `is_plain_int4` holds.
        mask: uint8 ``[..., n]``, 0 for an output that is left out and becomes 0.

    Returns:
        The new node, in the place of the old one.
    """
    attributes = {key: attribute_of(product, key) for key in ("n", "k", "scale_bits")}
    weight = input_of(product, "weight")
    assert weight is not None
    inputs = {
        "x": input_of(product, "x"),
        "weight": _records(graph, weight, **attributes),
        "mask": mask,
        "bias": input_of(product, "bias"),
    }
    chosen = graph.replace(product, "ChosenMatMul", inputs, attributes)
    if not weight.uses() and weight.name is not None:
        del graph.model.graph.initializers[weight.name]
    return chosen


def _records(graph: GraphEditor, weight: ir.Value, n: int, k: int, scale_bits: int) -> ir.Value:
    """The weight, packed by output."""
    assert weight.const_value is not None
    stored = weight.const_value.numpy()
    if scale_bits == 8:
        packed = tamiz_ops.pack_records_in_units(*tamiz_ops.unpack_int4_in_units(stored, n, k))
    else:
        packed = tamiz_ops.pack_records(*tamiz_ops.unpack_int4(stored, n, k))
    return graph.constant((weight.name or "weight").replace(".int4", ".records"), packed)
