"""What attention knows of the keys that a filter leaves out, in NumPy, in float64.

The equations stand in ``ops/event_attention.cc``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_HEADER = 2  # valid, off
_NO_KEYS = -1e30


def forget(past: Array, position: int) -> Array:
    """The state [batch, width] after a run that attends to all keys, from `position` on."""
    state = np.zeros(past.shape)
    if position > 0:
        state[:, 1] = past[:, 1]
    return state


def step(
    past: Array,
    queries: Array,
    keys: Array,
    values: Array,
    seen: Array,
    kept: Sequence[Sequence[int]],
    *,
    age_max: int = 16,
    turn: int = 0,
    gap_tol: float = 0.25,
) -> tuple[Array, Array]:
    """A decode step of one sequence.

    Args:
        past: its state [2 + q_heads (1 + 2 dim)].
        queries: [q_heads, dim], rotated and scaled.
        keys: [kv_heads, keys, dim].
        values: [kv_heads, keys, dim].
        seen: bool [keys].
        kept: the keys that the filter keeps, by KV head.

    Returns:
        y [q_heads, dim] and the state after the step.
    """
    valid, off = past[:_HEADER] != 0
    heads, dim = queries.shape
    rests = past[_HEADER:].reshape(heads, 1 + 2 * dim).astype(np.float64)
    due = not valid or off or (len(seen) + turn) % age_max == 0
    stale, full, found = np.zeros((3, heads, 1 + 2 * dim))
    for h, query in enumerate(queries):
        head = h * len(kept) // heads
        chosen = np.zeros(len(seen), bool)
        chosen[list(kept[head])] = True
        rest = _part(query, keys[head], values[head], seen & ~chosen)
        exact = _part(query, keys[head], values[head], chosen)
        known = rests[h].copy()
        known[0] += query @ known[1 : 1 + dim]
        stale[h], full[h] = _merge(exact, known), _merge(exact, rest)
        found[h] = rest
        found[h, 0] -= query @ rest[1 : 1 + dim]
    stale, full = stale[:, 1 + dim :], full[:, 1 + dim :]
    if not due:
        return stale, past.astype(np.float64)
    if valid and not off:
        error = np.linalg.norm(stale - full)
        off = error > 0 and not error / np.linalg.norm(full) <= gap_tol
    elif off:
        found = rests
    return full, np.concatenate([[1.0, off], found.ravel()])


def _part(query: Array, keys: Array, values: Array, which: Array) -> Array:
    """log Z, the mean key and the mean value of some keys: [1 + 2 dim]."""
    if not which.any():
        return np.concatenate([[_NO_KEYS], np.zeros(2 * len(query))])
    score = keys[which] @ query
    weight = np.exp(score - score.max())
    total = weight.sum()
    means = (weight @ keys[which] / total, weight @ values[which] / total)
    return np.concatenate([[np.log(total) + score.max()], *means])


def _merge(one: Array, other: Array) -> Array:
    logs = np.array([one[0], other[0]])
    weight = np.exp(logs - logs.max())
    merged: Array = (weight[0] * one + weight[1] * other) / weight.sum()
    return merged
