"""Ports and attributes of ops of the domain `tamiz`, by the names that their declarations give."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

import tamiz_ops
from tamiz.interface.metadata import DOMAIN

if TYPE_CHECKING:
    import onnx_ir as ir


def has_input(node: ir.Node | None, port: str) -> bool:
    """Whether a node is an op of the domain `tamiz` with an input of this name."""
    return (
        node is not None and node.domain == DOMAIN and port in tamiz_ops.ports(node.op_type).inputs
    )


def input_of(node: ir.Node, port: str) -> ir.Value | None:
    """What an op of the domain `tamiz` takes at a port; None where that is omitted."""
    index = tamiz_ops.ports(node.op_type).inputs[port]
    return node.inputs[index] if index < len(node.inputs) else None


def output_of(node: ir.Node, port: str) -> ir.Value:
    """What an op of the domain `tamiz` gives at a port.

    Raises:
        IndexError: The node has fewer outputs.
    """
    return node.outputs[tamiz_ops.ports(node.op_type).outputs[port]]


def attribute_of(node: ir.Node, name: str) -> Any:
    """The value of an attribute of an op of the domain `tamiz`, its default where none is set."""
    given = node.attributes.get(name)
    return _defaults(node.op_type)[name] if given is None else given.value


def product_of(node: ir.Node, x: np.ndarray) -> np.ndarray:
    """W x by an op of the domain `tamiz`, with the weight that it stores, without mask and bias.

    Args:
        node: A product, whose inputs `x`, `mask` and `bias` are left out.
        x: float32 ``[K]``.

    Returns:
        float32 ``[N]``.
    """
    constants: dict[str, np.ndarray] = {"x": x[np.newaxis]}
    ports = tamiz_ops.ports(node.op_type).inputs
    for port in ports:
        value = None if port in ("x", "mask", "bias") else input_of(node, port)
        if value is not None and value.const_value is not None:
            constants[port] = value.const_value.numpy()
    inputs = [constants.get(port) for port in ports]
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    product: np.ndarray = tamiz_ops.run(node.op_type, inputs, **attributes)[0][0]
    return product


@cache
def _defaults(op_type: str) -> Mapping[str, Any]:
    declared = tamiz_ops.schemas()[op_type]["attributes"]
    return {attribute["name"]: attribute["default"] for attribute in declared}
