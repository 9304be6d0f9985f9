"""The backward pass through Mamba's first version: its convolution, and its recurrence.

Per token and channel, with s = softplus(dt), decay α_n = exp(rate_n s), states
h_n = α_n h_{t-1,n} + b_n s x, and o = Σ c_n h_n + skip x:

    dh_n = dh_n + c_n do     dc_n = Σ h_n do          sums over channels
    db_n = Σ s x dh_n        dx = s Σ b_n dh_n + skip do
    ds = x Σ b_n dh_n + Σ rate_n α_n dh_n h_{t-1,n}      dh_{t-1,n} = α_n dh_n

States are computed again from one in so many, so that memory does not grow with the text.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tamiz.survey.backward.checkpoints import EVERY, backwards
from tamiz.survey.backward.node import Float, Gradients, Values, constant, has_input, read
from tamiz.survey.backward.taps import convolved, of_convolved, sigmoid, silu_slope

if TYPE_CHECKING:
    import onnx_ir as ir


class _Inputs(NamedTuple):
    """What the recurrence takes, ``[T, …]``; and of each channel rate and skip."""

    x: Float
    step: Float
    b: Float
    c: Float
    rate: Float
    skip: Float


def short_conv(
    node: ir.Node, values: Values, g: Float, of_present: Float | None = None
) -> Gradients:
    """y = c f(bias + convolution of b x), f = silu or nothing; b, c and bias may be missing.

    Args:
        node: The node; its text begins at its first token.
        values: The values of the run.
        g: The gradient at y.
        of_present: Is none: a loss depends on no state.
    """
    b, c = (read(node, i, values)[0] if has_input(node, i) else None for i in range(2))
    x = read(node, 2, values)[0]
    taps, silu = constant(node.inputs[3]), bool(node.attributes.get_int("silu", 0))
    mixed = convolved(x if b is None else b * x, taps)
    mixed = mixed + constant(node.inputs[7]) if has_input(node, 7) else mixed
    of_y = g[0] if c is None else g[0] * c
    of_u = of_convolved(of_y * silu_slope(mixed) if silu else of_y, taps)
    y = mixed * sigmoid(mixed) if silu else mixed
    found = (
        None if b is None else of_u * x,
        None if c is None else g[0] * y,
        of_u if b is None else of_u * b,
    )
    return [None if part is None else part.astype(np.float32)[None] for part in found]


def selective_scan(
    node: ir.Node, values: Values, g: Float, of_present: Float | None = None
) -> Gradients:
    """y = o silu(z), o of a recurrence over tokens; the op says more.

    Args:
        node: The node; its text begins at its first token.
        values: The values of the run.
        g: The gradient at y.
        of_present: Is none: a loss depends on no state.
    """
    x, dt, b, c, z = (read(node, index, values)[0] for index in range(5))
    step = np.logaddexp(0, dt).astype(np.float32)
    inputs = _Inputs(x, step, b, c, *(constant(node.inputs[index]) for index in (5, 6)))
    states, o = _forward(inputs)
    back = _backward(inputs, states, g[0] * z * sigmoid(z))
    found = (back.x, back.step * sigmoid(dt), back.b, back.c, g[0] * o * silu_slope(z))
    return [part.astype(np.float32)[None] for part in found]


def _forward(x: _Inputs) -> tuple[Float, Float]:
    """One state in so many, each before its token, and o of all tokens."""
    state = np.zeros_like(x.rate)
    kept, o = [], np.empty_like(x.x)
    for t in range(len(x.x)):
        if t % EVERY == 0:
            kept.append(state)
        state = _next(x, t, state)
        o[t] = x.c[t] @ state + x.skip * x.x[t]
    return np.stack(kept), o


def _next(x: _Inputs, t: int, before: Float) -> Float:
    after: Float = np.exp(x.rate * x.step[t]) * before + np.outer(x.b[t], x.step[t] * x.x[t])
    return after


def _backward(x: _Inputs, states: Float, of_o: Float) -> _Inputs:
    """The gradients at what the recurrence takes but rate and skip."""
    found = _Inputs(*(np.empty_like(part) for part in x))
    of_state = np.zeros_like(states[0])
    for t, earlier, state in backwards(states, len(of_o), partial(_next, x)):
        step, decay = x.step[t], np.exp(x.rate * x.step[t])
        of_state = of_state + np.outer(x.c[t], of_o[t])
        along = x.b[t] @ of_state
        found.c[t] = state @ of_o[t]
        found.b[t] = of_state @ (step * x.x[t])
        found.x[t] = step * along + x.skip * of_o[t]
        found.step[t] = along * x.x[t] + (x.rate * decay * of_state * earlier).sum(0)
        of_state = decay * of_state
    return found
