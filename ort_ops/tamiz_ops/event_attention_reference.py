"""Decode steps that attend to the keys that weigh, in NumPy, in float64.

The equations stand in ``ops/attention/event_choice.cc`` and ``kernels/sketch/key_scores-inl.h``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops import sketch_reference
from tamiz_ops.cache_rows import PAGE, round_weights, rounded

Array = npt.NDArray[Any]

_HEADER = 2  # valid, off
_NO_KEYS = -1e30
_CHUNK = 64  # elements whose nibbles lie together


def soft_cap(scores: Array, cap: float) -> Array:
    """c tanh(x / c) for a cap c > 0; x for c = 0."""
    return cap * np.tanh(scores / cap) if cap else scores


def pack(keys: Array, mean: Array | None) -> Array:
    """Rows of nibbles as the cache holds them.

    Args:
        keys: float32 [..., dim].
        mean: [dim], subtracted first; None is 0.

    Returns:
        float32 [..., bits / 8 + 1]: round(z / s) + 8 of the rotated key z, and s = max |z| / 7.
    """
    z = sketch_reference.rotate(keys, mean)
    q, scale = rounded(z, 7)
    low, high = np.split((q + 8).astype(np.uint8).reshape(*q.shape[:-1], -1, _CHUNK), 2, axis=-1)
    row = (low | high << 4).reshape(*q.shape[:-1], -1).view(np.float32)
    return np.concatenate([row, scale], axis=-1)


def scores(query: Array, rows: Array, mean: Array | None) -> Array:
    """q.k_j, nearly, of a query [dim] and rows of nibbles [keys, words]: [keys]."""
    q, scale = rounded(sketch_reference.rotate(query.astype(np.float32)), 127)
    nibbles = np.ascontiguousarray(rows[:, :-1]).view(np.uint8).reshape(len(rows), -1, _CHUNK // 2)
    z = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).reshape(len(rows), -1) - 8.0
    offset = 0.0 if mean is None else query @ mean
    result: Array = rows[:, -1] * (z @ q) * scale / z.shape[1] + offset
    return result


def forget(past: Array, position: int) -> Array:
    """The state [batch, width] after a run that attends to all keys, from `position` on."""
    state = np.zeros(past.shape)
    if position > 0:
        state[:, 1] = past[:, 1]
    return state


def step(
    past: Array,
    queries: Array,
    met: Array,
    keys: Array,
    values: Array,
    rows: Array,
    value_scales: Array | None,
    mean: Array | None,
    seen: Array,
    *,
    theta: float,
    age_max: int,
    turn: int,
    gap_tol: float,
    softcap: float = 0.0,
) -> tuple[Array, Array]:
    """A decode step of one sequence.

    Args:
        past: the state, [2 + q_heads * dim].
        queries: [q_heads, dim], rotated, as they meet sketches.
        met: [q_heads, dim], the queries as they meet `keys`.
        keys: [kv_heads, keys, dim], as the cache holds them.
        values: [kv_heads, keys, dim].
        rows: of nibbles, [kv_heads, keys, words].
        value_scales: those of `values` in bytes, [kv_heads, keys]; None for floats.
        mean: what sketches lack and `keys` do not, [kv_heads, dim].
        seen: bool [keys].
        theta: least part of a softmax, times sqrt(keys).
        age_max: tokens between steps that compute all.
        turn: of the layer.
        gap_tol: largest gap.
        softcap: of the scores; 0 for none.

    Returns:
        y [q_heads, dim] and the state after the step.
    """
    valid, off = past[:_HEADER] != 0
    heads, dim = queries.shape
    known = past[_HEADER:].reshape(heads, dim).astype(np.float64)
    due = not valid or off or (len(seen) + turn) % age_max == 0
    group = heads // len(keys)
    stale, full, found = np.zeros((3, heads, dim))
    for head in range(len(keys)):
        mine = slice(head * group, (head + 1) * group)
        stale[mine], full[mine], found[mine] = _attend(
            queries[mine], met[mine], keys[head], values[head], rows[head],
            None if value_scales is None else value_scales[head],
            None if mean is None else mean[head],
            seen, known[mine], theta, softcap,
        )  # fmt: skip
    if not due:
        return stale, past.astype(np.float64)
    if valid and not off:
        error = np.linalg.norm(stale - full)
        off = error > 0 and not error / np.linalg.norm(full) <= gap_tol
    elif off:
        found = known
    return full, np.concatenate([[1.0, off], found.ravel()])


def _attend(
    queries: Array,
    met: Array,
    keys: Array,
    values: Array,
    rows: Array,
    value_scales: Array | None,
    mean: Array | None,
    seen: Array,
    known: Array,
    theta: float,
    softcap: float,
) -> tuple[Array, Array, Array]:
    """The queries of one KV head: y by the known mean values, y of all keys, new mean values."""
    estimates = np.array([scores(query, rows, mean) for query in queries])
    kept, left = _choose(np.where(seen, soft_cap(estimates, softcap), -np.inf), theta)
    stale, full, found = np.zeros((3, *known.shape))
    for h, query in enumerate(met):
        own = soft_cap(keys @ query, softcap)
        exact = _part(own, values, value_scales, kept)
        rest = _part(own, values, value_scales, seen & ~kept)
        stale[h] = _merge(exact, (left[h], known[h]))
        full[h] = _merge(exact, rest)
        found[h] = rest[1]
    return stale, full, found


def _choose(estimates: Array, theta: float) -> tuple[Array, list[float]]:
    """Keys whose part of a query's softmax reaches theta / sqrt(keys), and the log of the rest.

    Args:
        estimates: scores, [queries, keys]; -inf for keys that are not seen.
        theta: as of `step`.
    """
    most = estimates.max(axis=1)
    weight = np.exp(estimates - most[:, np.newaxis])
    part = weight / weight.sum(axis=1, keepdims=True)
    kept = (part > theta / np.sqrt(estimates.shape[1])).any(axis=0)
    left = weight[:, ~kept].sum(axis=1)
    logs = [
        np.log(sum_) + top if sum_ > 0 else _NO_KEYS for sum_, top in zip(left, most, strict=True)
    ]
    return kept, logs


def _part(score: Array, values: Array, scales: Array | None, which: Array) -> tuple[float, Array]:
    """log of the weight of some keys, and their mean value."""
    if not which.any():
        return _NO_KEYS, np.zeros(values.shape[1])
    score = score[which]
    weight = np.exp(score - score.max())
    total = weight.sum()
    if scales is not None:
        weight = round_weights(weight, scales[which], np.arange(len(weight)) // PAGE)
    return float(np.log(total) + score.max()), weight @ values[which] / total


def _merge(one: tuple[float, Array], other: tuple[float, Array]) -> Array:
    logs = np.array([one[0], other[0]])
    weight = np.exp(logs - logs.max())
    merged: Array = (weight[0] * one[1] + weight[1] * other[1]) / weight.sum()
    return merged
