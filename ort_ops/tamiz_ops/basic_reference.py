"""Norms and activations in NumPy and float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def rms_norm(
    x: Array, weight: Array, residual: Array | None = None, *, epsilon: float = 1e-5
) -> list[Array]:
    """s = x + residual; y = s / sqrt(mean(s^2) + epsilon) * weight. Returns [y, s].

    Over every run of as many elements as the weight has: over a row, or over each of its heads.
    """
    s = x.astype(np.float64) + (0 if residual is None else residual)
    runs = s.reshape(*s.shape[:-1], -1, weight.size)
    y = runs / np.sqrt((runs**2).mean(-1, keepdims=True) + epsilon) * weight
    return [y.reshape(s.shape), s]


def scale(x: Array, factors: Array) -> list[Array]:
    """y = x times a factor for each row."""
    return [x * factors.astype(np.float64)[..., None]]


def layer_norm(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    residual: Array | None = None,
    *,
    epsilon: float = 1e-5,
) -> list[Array]:
    """s = x + residual; y = (s - mean(s)) / sqrt(var(s) + epsilon) * weight + bias.

    Over every row. Returns [y, s].
    """
    s = x.astype(np.float64) + (0 if residual is None else residual)
    y = (s - s.mean(-1, keepdims=True)) / np.sqrt(s.var(-1, keepdims=True) + epsilon) * weight
    return [y if bias is None else y + bias, s]


def add(x: Array, residual: Array) -> list[Array]:
    """y = x + residual."""
    return [x.astype(np.float64) + residual]


def swiglu(
    gate: Array,
    up: Array | None = None,
    *,
    activation: str = "silu",
    limit: float = 0.0,
    **trained: float,
) -> list[Array]:
    """y = f(gate) * up, f as the op's attribute `activation` says; `up` is 1 where it is None.

    With a limit f(min(gate, limit)) * (clip(up, -limit, limit) + 1). `trained` are the numbers of
    `xielu`.
    """
    wide = gate.astype(np.float64)
    if activation == "xielu":
        y = xielu(wide, **trained)
        return [y if up is None else y * up]
    f = _ACTIVATIONS[activation]
    if limit and up is not None:
        return [f(np.minimum(wide, limit)) * (np.clip(up, -limit, limit).astype(np.float64) + 1)]
    y = f(wide)
    return [y if up is None else y * up]


def xielu(x: Array, *, alpha_p: float, alpha_n: float, beta: float, epsilon: float = 0.0) -> Array:
    """alpha_p x² + beta x where x > 0, else alpha_n (exp(min(x, epsilon)) - 1 - x) + beta x."""
    bent = np.expm1(np.minimum(x, epsilon)) - x
    y: Array = np.where(x > 0, alpha_p * x * x, alpha_n * bent) + beta * x
    return y


def _logistic(x: Array, u: Array) -> Array:
    """x / (1 + exp(-u))."""
    with np.errstate(over="ignore"):
        y: Array = x / (1 + np.exp(-u))
    return y


def _erfc(x: Array) -> Array:
    y: Array = np.vectorize(math.erfc, otypes=[np.float64])(x)
    return y


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: _logistic(x, x),
    "gelu": lambda x: x / 2 * _erfc(-x / np.sqrt(2)),
    "gelu_tanh": lambda x: _logistic(x, np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)),
    "quick_gelu": lambda x: _logistic(x, 1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}
