"""What the backward pass through an op reads of its node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import onnx_ir as ir

Float = NDArray[np.float32]
#: Values of a run by name, in the shapes that the graph has: ``[1, T, width]`` for one text.
Values = Mapping[str, Float]
#: By input or output; None where the loss does not depend on it, or it is not requested.
Gradients = list["Float | None"]


class UnknownOpError(Exception):
    """No backward pass is known through an op; names it."""


def is_constant(value: ir.Value | None) -> bool:
    """Whether a value is a constant of the model, as it is stored or transposed."""
    if value is None or value.const_value is not None:
        return value is not None
    node = value.producer()
    return node is not None and node.op_type == "Transpose" and is_constant(node.inputs[0])


def constant(value: ir.Value | None) -> Any:
    """A constant of the model.

    Raises:
        UnknownOpError: It is computed.
    """
    if value is None or not is_constant(value):
        raise UnknownOpError(f"a product with {None if value is None else value.name}")
    if value.const_value is not None:
        return value.const_value.numpy()
    node = value.producer()
    assert node is not None
    return constant(node.inputs[0]).T


def rank(value: ir.Value | None) -> int:
    """Number of dimensions of a constant of the model, which is not read."""
    if value is not None and value.const_value is not None:
        return len(value.const_value.shape)
    node = None if value is None else value.producer()
    assert node is not None, "not a constant"
    return rank(node.inputs[0])


def has_input(node: ir.Node, index: int) -> bool:
    """Whether an input that may be left out is there."""
    return index < len(node.inputs) and node.inputs[index] is not None


def read(node: ir.Node, index: int, values: Values) -> Any:
    """An input: a constant of the model, or a value of the run."""
    value = node.inputs[index]
    assert value is not None
    if value.const_value is not None:
        return value.const_value.numpy()
    assert value.name is not None
    return values[value.name]


def like(gradient: Float, shape: tuple[int, ...]) -> Float:
    """The sum over what an input of this shape was repeated along."""
    extra = gradient.ndim - len(shape)
    summed = gradient.sum(axis=tuple(range(extra))) if extra else gradient
    repeated = tuple(i for i, size in enumerate(shape) if size == 1 != summed.shape[i])
    return summed.sum(axis=repeated, keepdims=True) if repeated else summed


def axis_of(node: ir.Node, default: int = -1) -> int:
    """The attribute `axis`."""
    return node.attributes["axis"].as_int() if "axis" in node.attributes else default


def attributes_of(node: ir.Node) -> dict[str, Any]:
    """All attributes by name."""
    return {name: attribute.value for name, attribute in node.attributes.items()}
