"""The backward pass through a selective state space (Mamba-2); see `products`.

Per token and head, with step s, decay α = exp(rate s), h = α h_{t-1} + b (s x)ᵀ, o = hᵀc + skip x:

    dh = dh + c doᵀ          dc = h do
    db = s dh x              dx = s dhᵀb + skip do
    ds = xᵀ(dhᵀb) + rate α ⟨dh, h_{t-1}⟩       dh_{t-1} = α dh

States are computed again from one in so many, so that memory does not grow with the text.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tamiz.survey.backward.checkpoints import EVERY, backwards
from tamiz.survey.backward.node import Float, Gradients, Values, constant, read
from tamiz.survey.backward.taps import convolved, of_convolved, sigmoid, silu_slope

if TYPE_CHECKING:
    import onnx_ir as ir


class _Inputs(NamedTuple):
    """What the recurrence takes, ``[T, heads, …]``; and of each head rate and skip."""

    b: Float
    c: Float
    x: Float
    step: Float
    rate: Float
    skip: Float


def mamba2(node: ir.Node, values: Values, g: Float, of_present: Float | None = None) -> Gradients:
    """y = norm(o silu(z)) w, o of a recurrence over tokens; the op says more.

    Args:
        node: The node; its text begins at its first token.
        values: The values of the run.
        g: The gradient at y.
        of_present: Is none: a loss depends on no state.
    """
    projected = read(node, 0, values)[0]
    taps, rate, bias, skip = (constant(node.inputs[index]) for index in range(1, 5))
    conv_bias, weight = (
        None if node.inputs[index] is None else constant(node.inputs[index]) for index in (5, 6)
    )
    groups, tokens, heads = node.attributes["groups"].as_int(), len(projected), len(rate)
    inner = projected.shape[1] - taps.shape[1] - heads
    state = (taps.shape[1] - inner) // 2
    z, u, dt = np.split(projected, [inner, inner + taps.shape[1]], axis=1)
    mixed = convolved(u, taps)
    mixed = mixed if conv_bias is None else mixed + conv_bias
    x, b, c = np.split(mixed * sigmoid(mixed), [inner, inner + state], axis=1)
    own = np.arange(heads) // (heads // groups)
    b, c = (part.reshape(tokens, groups, -1)[:, own] for part in (b, c))
    raw = np.logaddexp(0, dt + bias).astype(np.float32)
    least = node.attributes.get_float("dt_min", 0.0)
    most = node.attributes.get_float("dt_max", np.inf)
    inputs = _Inputs(b, c, x.reshape(tokens, heads, -1), np.clip(raw, least, most), rate, skip)
    states, o = _forward(inputs)
    of_o, of_z = _gated(node, o.reshape(tokens, -1), z, weight, groups, g[0])
    back = _backward(inputs, states, of_o.reshape(o.shape))
    of_groups = [
        np.stack([part[:, own == group].sum(1) for group in range(groups)], 1)
        for part in (back.b, back.c)
    ]
    parts = [part.reshape(tokens, -1) for part in (back.x, *of_groups)]
    of_mixed = np.concatenate(parts, axis=1) * silu_slope(mixed)
    inside = (raw >= least) & (raw <= most)
    of_dt = back.step * sigmoid(dt + bias) * inside
    found = np.concatenate([of_z, of_convolved(of_mixed, taps), of_dt], axis=1)
    return [found.astype(np.float32)[None]]


def _gated(
    node: ir.Node, o: Float, z: Float, weight: Float | None, groups: int, g: Float
) -> tuple[Float, Float]:
    """The gradients at o and at z."""
    gate, slope = z * sigmoid(z), silu_slope(z)
    if weight is None:
        return g * gate, g * o * slope
    first = bool(node.attributes.get_int("norm_first", 0))
    normed = o if first else o * gate
    epsilon = np.float32(node.attributes.get_float("epsilon", 1e-5))
    parts = normed.reshape(len(o), groups, -1)
    scale = 1 / np.sqrt(np.square(parts).mean(-1, keepdims=True) + epsilon)
    of_unit = (g * weight * gate if first else g * weight).reshape(parts.shape)
    along = (of_unit * parts).mean(-1, keepdims=True)
    of_normed = (scale * (of_unit - parts * along * scale**2)).reshape(o.shape)
    if first:
        return of_normed, g * (parts * scale).reshape(o.shape) * weight * slope
    return of_normed * gate, of_normed * o * slope


def _forward(x: _Inputs) -> tuple[Float, Float]:
    """One state in so many, each before its token, and o of all tokens."""
    tokens, heads, d_state = x.b.shape
    state = np.zeros((heads, d_state, x.x.shape[2]), np.float32)
    kept, o = [], np.empty_like(x.x)
    for t in range(tokens):
        if t % EVERY == 0:
            kept.append(state)
        state = _next(x, t, state)
        o[t] = np.einsum("hnp,hn->hp", state, x.c[t]) + x.skip[:, None] * x.x[t]
    return np.stack(kept), o


def _next(x: _Inputs, t: int, before: Float) -> Float:
    decay = np.exp(x.rate * x.step[t])[:, None, None]
    after: Float = decay * before + x.b[t][:, :, None] * (x.step[t][:, None] * x.x[t])[:, None]
    return after


def _backward(x: _Inputs, states: Float, of_o: Float) -> _Inputs:
    """The gradients at what the recurrence takes but rate and skip."""
    found = _Inputs(*(np.empty_like(part) for part in x))
    of_state = np.zeros_like(states[0])
    for t, earlier, state in backwards(states, len(of_o), partial(_next, x)):
        step, decay = x.step[t][:, None], np.exp(x.rate * x.step[t])
        of_state = of_state + x.c[t][:, :, None] * of_o[t][:, None]
        found.c[t] = np.einsum("hnp,hp->hn", state, of_o[t])
        found.b[t] = step * np.einsum("hnp,hp->hn", of_state, x.x[t])
        along = np.einsum("hnp,hn->hp", of_state, x.b[t])
        found.x[t] = step * along + x.skip[:, None] * of_o[t]
        of_decay = (of_state * earlier).sum((-1, -2))
        found.step[t] = (along * x.x[t]).sum(-1) + x.rate * decay * of_decay
        of_state = decay[:, None, None] * of_state
    return found
