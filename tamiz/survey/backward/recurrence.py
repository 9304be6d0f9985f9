"""The backward pass through a gated delta net; see `products`.

Per token and value head, with decay α, gate β, P = α S_{t-1}, e = v - Pᵀk and S = P + k (β e)ᵀ:

    dS  = dS + q dyᵀ         dq = S dy
    dk  = β dS e - β P dSᵀk  dv = β dSᵀk       dβ = eᵀ dSᵀk
    dP  = dS - β k (dSᵀk)ᵀ   dα = ⟨dP, S_{t-1}⟩   dS_{t-1} = α dP

States are computed again from one in so many, so that memory does not grow with the text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tamiz.survey.backward.checkpoints import EVERY, backwards
from tamiz.survey.backward.node import Float, Gradients, Values, constant, read
from tamiz.survey.backward.taps import convolved, of_convolved, sigmoid, silu_slope

if TYPE_CHECKING:
    import onnx_ir as ir

_UNIT_EPSILON = np.float32(1e-6)


class _Inputs(NamedTuple):
    """What the recurrence takes, ``[T, value heads, …]``."""

    q: Float
    k: Float
    v: Float
    decay: Float
    beta: Float


def gated_delta_net(
    node: ir.Node, values: Values, g: Float, of_present: Float | None = None
) -> Gradients:
    """y = norm(o) w silu(z), o of a recurrence over tokens; the op says more.

    Args:
        node: The node; its text begins at its first token.
        values: The values of the run.
        g: The gradient at y.
        of_present: Is none: a loss depends on no state.
    """
    qkv, z, b, a = (read(node, index, values)[0] for index in range(4))
    taps, rate, bias, weight = (constant(node.inputs[index]) for index in range(4, 8))
    key_heads, heads, d_v = node.attributes["key_heads"].as_int(), len(rate), len(weight)
    d_k = (taps.shape[1] - heads * d_v) // (2 * key_heads)
    tokens, keys = len(qkv), key_heads * d_k
    numbers = np.arange(heads)
    tiled = node.attributes.get_int("tiled", 0)
    own = numbers % key_heads if tiled else numbers // (heads // key_heads)
    mixed = convolved(qkv, taps)
    parts = np.split(mixed * sigmoid(mixed), [keys, 2 * keys], axis=1)
    q, k = (part.reshape(tokens, key_heads, d_k) for part in parts[:2])
    units, factor = [_unit(q), _unit(k)], np.float32(d_k**-0.5)
    steps, beta = a + bias, sigmoid(b)
    decay = np.exp(rate * np.logaddexp(0, steps))
    v = parts[2].reshape(tokens, heads, d_v)
    inputs = _Inputs(units[0][:, own] * factor, units[1][:, own], v, decay, beta)
    states, o = _forward(inputs)

    gate = z.reshape(o.shape)
    gate_value = gate * sigmoid(gate)
    epsilon = np.float32(node.attributes.get_float("epsilon", 1e-6))
    scale = 1 / np.sqrt(np.square(o).mean(-1, keepdims=True) + epsilon)
    of_y = g[0].reshape(o.shape)
    of_unit = of_y * gate_value * weight
    of_o = scale * (of_unit - o * (of_unit * o).mean(-1, keepdims=True) * scale**2)
    of_z = of_y * o * scale * weight * silu_slope(gate)

    back = _backward(inputs, states, of_o)
    of_keys = [
        np.stack([gradient[:, own == key].sum(1) for key in range(key_heads)], 1)
        for gradient in (back.q * factor, back.k)
    ]
    lengths = [_of_unit(*pair) for pair in zip((q, k), units, of_keys, strict=True)]
    of_parts = [part.reshape(tokens, -1) for part in (*lengths, back.v)]
    of_mixed = np.concatenate(of_parts, axis=1) * silu_slope(mixed)
    of_b = back.beta * beta * (1 - beta)
    of_a = back.decay * decay * rate * sigmoid(steps)
    found = (of_convolved(of_mixed, taps), of_z.reshape(z.shape), of_b, of_a)
    return [gradient.astype(np.float32)[None] for gradient in found]


def _forward(x: _Inputs) -> tuple[Float, Float]:
    """One state in so many, each before its token, and o of all tokens."""
    tokens, heads, d_k = x.k.shape
    state = np.zeros((heads, d_k, x.v.shape[2]), np.float32)
    kept, o = [], np.empty_like(x.v)
    for t in range(tokens):
        if t % EVERY == 0:
            kept.append(state)
        state = _step(x, t, state)[2]
        o[t] = np.einsum("hkv,hk->hv", state, x.q[t])
    return np.stack(kept), o


def _step(x: _Inputs, t: int, before: Float) -> tuple[Float, Float, Float]:
    """P, e and S of a token."""
    decayed = x.decay[t][:, None, None] * before
    error = x.v[t] - np.einsum("hkv,hk->hv", decayed, x.k[t])
    added = x.k[t][:, :, None] * (x.beta[t][:, None] * error)[:, None]
    return decayed, error, decayed + added


def _backward(x: _Inputs, states: Float, of_o: Float) -> _Inputs:
    """The gradients at what the recurrence takes."""
    found = _Inputs(*(np.empty_like(part) for part in x))
    of_state = np.zeros_like(states[0])
    for t, earlier, state in backwards(states, len(of_o), lambda t, before: _step(x, t, before)[2]):
        decayed, error, _ = _step(x, t, earlier)
        beta = x.beta[t][:, None]
        of_state = of_state + x.q[t][:, :, None] * of_o[t][:, None]
        found.q[t] = np.einsum("hkv,hv->hk", state, of_o[t])
        along = np.einsum("hkv,hk->hv", of_state, x.k[t])
        found.v[t] = beta * along
        found.beta[t] = (along * error).sum(-1)
        found.k[t] = np.einsum("hkv,hv->hk", of_state, beta * error)
        found.k[t] -= np.einsum("hkv,hv->hk", decayed, found.v[t])
        of_decayed = of_state - x.k[t][:, :, None] * found.v[t][:, None]
        found.decay[t] = (of_decayed * earlier).sum((-1, -2))
        of_state = x.decay[t][:, None, None] * of_decayed
    return found


def _unit(x: Float) -> Float:
    unit: Float = x / np.sqrt(np.square(x).sum(-1, keepdims=True) + _UNIT_EPSILON)
    return unit


def _of_unit(x: Float, unit: Float, g: Float) -> Float:
    length = np.sqrt(np.square(x).sum(-1, keepdims=True) + _UNIT_EPSILON)
    gradient: Float = (g - unit * (unit * g).sum(-1, keepdims=True)) / length
    return gradient
