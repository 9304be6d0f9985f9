"""The backward pass through ops that tamiz's passes write, but attention; see `products`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tamiz.survey.backward.node import (
    Float,
    Gradients,
    UnknownOpError,
    Values,
    constant,
    has_input,
    read,
)

if TYPE_CHECKING:
    import onnx_ir as ir


def last_positions(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x: none are left out."""
    if read(node, 0, values).shape != g.shape:
        raise UnknownOpError(f"{node.name}, which leaves something out")
    return [g]


def rms_norm(
    node: ir.Node, values: Values, g: Float | None, of_sum: Float | None = None
) -> Gradients:
    """s = x + residual; y = s / sqrt(mean(s²) + ε) · w over runs of as many elements as w has."""
    weight = constant(node.inputs[1])
    residual = has_input(node, 2)
    s = read(node, 0, values)
    s = s + read(node, 2, values) if residual else s
    gradient = np.zeros_like(s) if of_sum is None else of_sum
    if g is not None:
        runs = s.reshape(*s.shape[:-1], -1, weight.size)
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        scale = 1 / np.sqrt(np.square(runs).mean(axis=-1, keepdims=True) + np.float32(epsilon))
        of_unit = g.reshape(runs.shape) * weight
        along = (of_unit * runs).mean(axis=-1, keepdims=True)
        gradient = gradient + (scale * (of_unit - runs * along * scale**2)).reshape(s.shape)
    return [gradient, None, gradient if residual else None]


def swiglu(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = gate · σ(gate) · up."""
    gate, up = read(node, 0, values), read(node, 1, values)
    activation = node.attributes.get("activation")
    if activation is not None and activation.as_string() != "silu":
        return _geglu(gate, up, g)
    with np.errstate(over="ignore"):
        sigmoid = (1 / (1 + np.exp(-gate))).astype(np.float32)
    return [g * up * sigmoid * (1 + gate * (1 - sigmoid)), g * gate * sigmoid]


def _geglu(gate: Float, up: Float, g: Float) -> Gradients:
    """y = gate · σ(u) · up, u = sqrt(8/π) (gate + 0.044715 gate³)."""
    root = np.float32((8 / np.pi) ** 0.5)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-root * (gate + np.float32(0.044715) * gate**3)))
    slope = root * (1 + np.float32(3 * 0.044715) * gate**2)
    return [g * up * sigmoid * (1 + gate * slope * (1 - sigmoid)), g * gate * sigmoid]
