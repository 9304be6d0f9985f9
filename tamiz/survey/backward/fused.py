"""The backward pass through ops that tamiz's passes write, but attention; see `products`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
    """y = f(gate) · up, or f(gate) without up.

    With a limit L, y = f(min(gate, L)) · (clip(up, -L, L) + 1).
    """
    gate = read(node, 0, values)
    name = node.attributes.get_string("activation", "silu")
    f = partial(_xielu, node) if name == "xielu" else _ACTIVATIONS[name]
    limit = np.float32(node.attributes.get_float("limit", 0.0))
    value, slope = f(np.minimum(gate, limit) if limit else gate)
    if not has_input(node, 1):
        return [g * slope]
    up = read(node, 1, values)
    if not limit:
        return [g * up * slope, g * value]
    factor = np.clip(up, -limit, limit) + np.float32(1)
    return [g * factor * slope * (gate < limit), g * value * (np.abs(up) < limit)]


def _xielu(node: ir.Node, x: Float) -> tuple[Float, Float]:
    """α_p x² + β x where x > 0, else α_n (exp(min(x, ε)) - 1 - x) + β x."""
    names = ("alpha_p", "alpha_n", "beta", "epsilon")
    alpha_p, alpha_n, beta, epsilon = (
        np.float32(node.attributes.get_float(name, 0.0)) for name in names
    )
    grown = np.exp(np.minimum(x, epsilon))
    value = np.where(x > 0, alpha_p * x * x, alpha_n * (grown - 1 - x)) + beta * x
    slope = np.where(x > 0, 2 * alpha_p * x, alpha_n * (grown * (x < epsilon) - 1)) + beta
    return value, slope


def _by_sigmoid(gate: Float, u: Float, slope: Float | np.float32) -> tuple[Float, Float]:
    """gate · σ(u) and its derivative, where `slope` is that of u."""
    with np.errstate(over="ignore"):
        sigmoid = (1 / (1 + np.exp(-u))).astype(np.float32)
    return gate * sigmoid, sigmoid * (1 + gate * slope * (1 - sigmoid))


def _silu(gate: Float) -> tuple[Float, Float]:
    return _by_sigmoid(gate, gate, np.float32(1))


def _quick_gelu(gate: Float) -> tuple[Float, Float]:
    slope = np.float32(1.702)
    return _by_sigmoid(gate, slope * gate, slope)


def _gelu_tanh(gate: Float) -> tuple[Float, Float]:
    """u = sqrt(8/π) (gate + 0.044715 gate³)."""
    root, cubic = np.float32((8 / np.pi) ** 0.5), np.float32(0.044715)
    slope = root * (1 + 3 * cubic * gate**2)
    return _by_sigmoid(gate, root * (gate + cubic * gate**3), slope)


def _gelu(gate: Float) -> tuple[Float, Float]:
    share = _normal_share(gate)
    density = np.exp(-np.square(gate) / 2) / np.float32((2 * np.pi) ** 0.5)
    return gate * share, share + gate * density


def _normal_share(x: Float) -> Float:
    """erfc(-x / sqrt(2)) / 2, within 1e-7 (Press et al., Numerical Recipes in C, section 6.2)."""
    z = np.abs(x) / np.float32(2**0.5)
    t = 1 / (1 + z / 2)
    tail: Float = t / 2 * np.exp(np.polyval(_ERFC, t) - z * z)
    return np.where(x <= 0, tail, 1 - tail).astype(np.float32)


#: From the highest power of t on.
_ERFC = np.array(
    [
        *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
        *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
    ],
    np.float32,
)


def _relu(gate: Float) -> tuple[Float, Float]:
    return np.maximum(gate, 0), (gate > 0).astype(np.float32)


def _relu2(gate: Float) -> tuple[Float, Float]:
    relu = np.maximum(gate, 0)
    return relu * relu, 2 * relu


#: f and its derivative, by the attribute `activation`.
_ACTIVATIONS: dict[str, Callable[[Float], tuple[Float, Float]]] = {
    "silu": _silu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": _relu,
    "relu2": _relu2,
}
