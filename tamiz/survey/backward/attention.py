"""The backward pass through an attention of one text that nothing precedes; see `products`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tamiz.api.attention import SINKS
from tamiz.api.ports import input_of
from tamiz.survey.backward.node import (
    Float,
    Gradients,
    UnknownOpError,
    Values,
    attributes_of,
    constant,
    has_input,
    read,
)

if TYPE_CHECKING:
    import onnx_ir as ir

#: Inputs: k, v, and what is kept of both.
_K, _V, _PASTS = 1, 2, (3, 4)
#: Attributes of an attention over all keys, or over a window of the last ones.
_PLAIN = {"num_heads", "kv_heads", "scale", "softcap", "rotary_scale", "window", "sinks"}


def attention(node: ir.Node, values: Values, g_y: Float, *states: Float | None) -> Gradients:
    """y = softmax(scale · q kᵀ) v over the keys so far, q and k turned by their positions.

    With a soft cap c, c · tanh(scores / c) are the scores. The sink of a head joins the sum of its
    softmax, and has no value. Turned queries may be multiplied by a weight of each element. A slope
    of each head times the distance may be added to scores.
    Without v the values are the keys; without k both are those that another attention keeps.
    With a window W a query sees the last W keys and the first ones, as many as there are sinks.
    """
    own = attributes_of(node)
    if set(own) - _PLAIN:
        raise UnknownOpError(f"{node.name} with {', '.join(sorted(set(own) - _PLAIN))}")
    heads, kv_heads = own["num_heads"], own["kv_heads"]
    q = read(node, 0, values)
    tokens, dim = q.size // q.shape[-1], q.shape[-1] // heads
    scale, cap = np.float32(own.get("scale") or dim**-0.5), np.float32(own.get("softcap", 0.0))
    turn = _Turn(node, tokens, own.get("rotary_scale", 1.0))
    weight = input_of(node, "query_weight")
    weights = np.float32(1) if weight is None else constant(weight)
    queries = weights * turn(q.reshape(tokens, heads, dim))
    keys, of_values = _keys_and_values(node, values, turn, (tokens, kv_heads, dim))
    g = g_y.reshape(tokens, heads, dim)
    g_q, g_k, g_v = np.zeros_like(queries), np.zeros_like(keys), np.zeros_like(of_values)
    sink = input_of(node, "head_sink")
    sinks = None if sink is None else constant(sink)
    slope_of = input_of(node, "head_slope")
    slopes = None if slope_of is None else constant(slope_of)
    distance = np.subtract.outer(-np.arange(tokens), -np.arange(tokens)).astype(np.float32)
    hidden = np.triu(np.ones((tokens, tokens), bool), 1)
    if window := own.get("window", 0):
        far = np.tril(np.ones((tokens, tokens), bool), -window)
        far[:, : own.get("sinks", SINKS)] = False
        hidden |= far
    for head in range(heads):
        shared = head * kv_heads // heads
        score = scale * (queries[:, head] @ keys[:, shared].T)
        slope = scale
        if cap:
            tanh = np.tanh(score / cap)
            score, slope = cap * tanh, scale * (1 - np.square(tanh))
        if slopes is not None:
            score = score + slopes[head] * distance
        score[hidden] = -np.inf
        top = score.max(axis=1, keepdims=True)
        p = np.exp(score - top)
        of_sink = 0 if sinks is None else np.exp(sinks[head] - top)
        p /= p.sum(axis=1, keepdims=True) + of_sink
        g_v[:, shared] += p.T @ g[:, head]
        of_p = g[:, head] @ of_values[:, shared].T
        of_score = slope * p * (of_p - (of_p * p).sum(axis=1, keepdims=True))
        g_q[:, head] = of_score @ keys[:, shared]
        g_k[:, shared] += of_score.T @ queries[:, head]
    g_q = turn.back(weights * g_q).reshape(q.shape)
    return [g_q, *_at_keys_and_values(node, values, g_k, g_v, turn, states)]


def _keys_and_values(
    node: ir.Node, values: Values, turn: _Turn, shape: tuple[int, ...]
) -> tuple[Float, Float]:
    """Keys, turned, and values, ``[tokens, heads, D]``, which may be those of another attention."""
    if not has_input(node, _K):
        kept = [read(node, i, values)[0].swapaxes(0, 1) for i in _PASTS if has_input(node, i)]
        return kept[0], kept[-1]
    keys = turn(read(node, _K, values).reshape(shape))
    return keys, read(node, _V, values).reshape(shape) if has_input(node, _V) else keys


def _at_keys_and_values(
    node: ir.Node,
    values: Values,
    g_k: Float,
    g_v: Float,
    turn: _Turn,
    states: tuple[Float | None, ...],
) -> Gradients:
    """The gradients at the inputs behind q, with what others make of what is kept."""
    if not (has_input(node, _V) or has_input(node, _PASTS[1])):  # values are the keys
        g_k, g_v = g_k + g_v, np.zeros_like(g_v)
    if not has_input(node, _K):
        return [None, None, *(g.swapaxes(0, 1)[None] for g in (g_k, g_v))]
    for total, state in zip((g_k, g_v), states, strict=False):
        if state is not None:
            total += state[0].swapaxes(0, 1)
    shape = read(node, _K, values).shape
    return [turn.back(g_k).reshape(shape), g_v.reshape(shape) if has_input(node, _V) else None]


class _Turn:
    """The rotary embedding of an attention, and its backward pass (the opposite turn)."""

    def __init__(self, node: ir.Node, tokens: int, factor: float) -> None:
        frequency = node.inputs[7] if has_input(node, 7) else None
        self.half = 0 if frequency is None else constant(frequency).size
        if frequency is not None:
            angle = np.arange(tokens, dtype=np.float32)[:, None, None] * constant(frequency)
            self.cosine, self.sine = np.cos(angle) * factor, np.sin(angle) * factor

    def __call__(self, x: Float, way: float = 1.0) -> Float:
        if not self.half:
            return x
        a, b, rest = np.split(x, [self.half, 2 * self.half], axis=-1)
        sine = way * self.sine
        turned = [a * self.cosine - b * sine, b * self.cosine + a * sine, rest]
        return np.concatenate(turned, axis=-1).astype(np.float32)

    def back(self, gradient: Float) -> Float:
        return self(gradient, -1.0)
