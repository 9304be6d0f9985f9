"""The convolution in front of a recurrence, and slopes of its activations, in NumPy."""

from __future__ import annotations

import numpy as np

from tamiz.survey.backward.node import Float


def convolved(u: Float, taps: Float) -> Float:
    """Σ_j w_j u_{t - taps + 1 + j}, and u = 0 before the first token."""
    padded = np.pad(u, ((len(taps) - 1, 0), (0, 0)))
    parts = [tap * padded[j : j + len(u)] for j, tap in enumerate(taps)]
    return np.asarray(np.sum(parts, axis=0), np.float32)


def of_convolved(g: Float, taps: Float) -> Float:
    """The gradient at u: the same sum, backwards in time."""
    return convolved(g[::-1], taps)[::-1]


def sigmoid(x: Float) -> Float:
    """1 / (1 + exp(-x))."""
    return np.asarray(1 / (1 + np.exp(-x)), np.float32)


def silu_slope(x: Float) -> Float:
    """The derivative of x sigmoid(x)."""
    value = sigmoid(x)
    slope: Float = value * (1 + x * (1 - value))
    return slope
