"""EventSelect and EventSum in NumPy; part of `tamiz_ops.reference`. No clock: any budget but 0 is
as none."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def event_select(
    x: Array,
    past: Array,
    mean: Array | None = None,
    scale: Array | None = None,
    attention_mask: Array | None = None,
    candidates: Array | None = None,
    *,
    k: int,
    n: int,
    alpha: float = 0.0,
    theta: float = 0.0,
    keep: int = 0,
    quorum: float = 0.0,
    budget_us: float = -1.0,
    age_max: int = 0,
    gap_every: int = 0,
    dense_first: int = 4,
    beta: float = 1.0,
    block: int = 1,
    together: int = 1,
) -> list[Array]:
    """expected = mean + alpha (reference - mean); chosen where |x - expected| scale >= theta.

    Of these at most `keep`, the largest scores, and among equals the lower inputs. Blocks of
    `together` inputs are chosen by the root of the sum of squared scores. Returns
    [delta, mask, plan, reference, started].
    """
    batch, tokens, _ = x.shape
    position = -1 if attention_mask is None else attention_mask.shape[1] - tokens
    decode = tokens == 1
    gap = decode and gap_every > 0 and position >= dense_first and position % gap_every == 0
    kinds = 1 + int(decode and beta != 1) + int(gap)
    delta, mask = np.zeros((kinds, *x.shape)), np.zeros((kinds, *x.shape), np.uint8)
    plan, reference = np.zeros((batch, 4)), x[:, -1].astype(np.float64)
    dense = [0, -1] if gap else [0]
    delta[dense], mask[dense] = x, 1
    early = 0 <= position < max(dense_first, 1)
    for b in range(batch):
        valid, off, _ = past[b, -3:]
        plan[b] = 0, k, off and position != 0, 0
        if not decode or early or plan[b, 2] or not valid:
            continue
        expected = _expected(past[b, :k], k, mean, alpha)
        difference = x[b, 0] - expected
        score = np.abs(difference) * (1 if scale is None else scale)
        turn = slice(position % age_max, None, age_max) if age_max and position >= 0 else slice(0)
        free = np.ones(k) if candidates is None else np.repeat(candidates[b, 0], block)[:k]
        share = quorum if budget_us == 0 else 1
        chosen = _choose_blocks(score, theta, turn, free, keep or k, share, together)
        if chosen.all():
            continue
        delta[0, b, 0], mask[0, b, 0] = difference, chosen
        if beta != 1:
            delta[1, b, 0], mask[1, b, 0] = x[b, 0], chosen
        plan[b] = 1, chosen.sum(), 0, gap
        if not gap:
            reference[b] = np.where(chosen, x[b, 0], expected)
    delta, mask = (array.reshape(-1, tokens, k) for array in (delta, mask))
    return [delta, mask, plan, reference, np.zeros(1, np.int64)]


def _expected(last: Array, k: int, mean: Array | None, alpha: float) -> Array:
    """mean + alpha (last - mean) of k inputs; with alpha 0 the state has no last ones."""
    m = np.zeros(k) if mean is None else mean.astype(np.float64)
    return m if alpha == 0 else m + alpha * (last - m)


def _choose_blocks(
    score: Array, theta: float, turn: slice, free: Array, keep: int, share: float, together: int
) -> Array:
    """Flags of the inputs that `_choose` takes in blocks of `together`."""
    starts = np.arange(0, len(score), together)
    root = np.sqrt(np.add.reduceat(np.where(free, score, 0) ** 2, starts))
    some = np.maximum.reduceat(free, starts) != 0
    blocks = _choose(root, theta, turn, some, keep, share)
    chosen: Array = np.repeat(blocks, together)[: len(score)] & (free != 0)
    return chosen


def _choose(score: Array, theta: float, turn: slice, free: Array, keep: int, share: float) -> Array:
    """Flags of the inputs whose score reaches theta or whose turn it is, among the free ones.

    Of these the given share of at most `keep`: first those whose turn it is, then the largest
    scores, and among equals the lower inputs.
    """
    score = score.copy()
    score[turn] = np.inf
    chosen = ~(score < theta) & free
    count = int(np.ceil(share * min(keep, int(chosen.sum()))))
    order = np.argsort(np.where(chosen, -score, np.inf), kind="stable")
    return np.isin(np.arange(len(score)), order[:count])


def event_sum(
    dy: Array,
    past: Array,
    plan: Array,
    reference: Array,
    base: Array | None = None,
    started: Array | None = None,
    *,
    k: int,
    n: int,
    alpha: float = 0.0,
    beta: float = 1.0,
    gap_tol: float = 0.03,
) -> list[Array]:
    """y = dy + alpha y_past + base where deltas were taken, else y = dy. Returns [y, present]."""
    batch = len(past)
    rows = dy.astype(np.float64).reshape(-1, batch, *dy.shape[1:])
    y, kept = rows[0].copy(), rows[0, :, -1].copy()
    off = plan[:, 2].astype(np.float64)
    for b in range(batch):
        if not plan[b, 0]:
            continue
        if alpha != 0:
            kept[b] += alpha * past[b, k : k + n]
        if base is not None:
            kept[b] += base
        y[b, -1] = kept[b]
        if beta != 1:
            y[b, -1] = beta * kept[b] + (1 - beta) * rows[1, b, -1]
        if plan[b, 3]:
            full = rows[-1, b, -1]
            off[b] = not np.linalg.norm(y[b, -1] - full) <= gap_tol * np.linalg.norm(full)
            y[b, -1] = kept[b] = full
    flags = np.stack([np.ones(batch), off, past[:, -1]], axis=1)
    if alpha == 0:
        return [y, flags]
    return [y, np.concatenate([reference, kept, flags], axis=1)]
