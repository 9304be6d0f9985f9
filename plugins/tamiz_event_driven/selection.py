"""Which inputs event-driven computes on a run of consecutive tokens, and what that costs.

expected_t = μ + α (x̂_{t−1} − μ)        x̂_t = x_t where |x_t − expected_t| s ≥ θ, else expected_t

Of inputs that are computed together, the root of the sum of squares of their scores counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]

#: Tokens of the run that are dense, as at the start of a sequence.
DENSE_FIRST = 4


@dataclass(frozen=True)
class Reference:
    """What is expected of the inputs.

    Attributes:
        name: As the configuration names it.
        mean: μ, ``[K]``; None for 0.
        alpha: α.
    """

    name: str
    mean: Float | None
    alpha: float


@dataclass(frozen=True)
class Outcome:
    """What a selection did on a run.

    Attributes:
        effective: x̂, ``[R, K]``.
        kept: Mean fraction of the inputs that were computed, after the first tokens.
    """

    effective: Float
    kept: float


def simulate(
    run: Float,
    reference: Reference,
    scale: Float,
    theta: float,
    keep: int | None,
    width: int = 1,
) -> Outcome:
    """Runs the selection over consecutive inputs.

    Args:
        run: Inputs ``[R, K]``.
        reference: What is expected.
        scale: s, ``[K]``.
        theta: θ.
        keep: Most blocks of a token; None for any number.
        width: Inputs of a block.
    """
    k = run.shape[1]
    mean = np.zeros(k, np.float32) if reference.mean is None else reference.mean
    effective, rows = run.copy(), run[DENSE_FIRST:]
    if reference.alpha == 0:  # what is expected depends on no token before
        chosen = _chosen(rows, mean, scale, theta, keep, width)
        effective[DENSE_FIRST:] = np.where(chosen, rows, mean)
    else:
        chosen, alpha = np.zeros(rows.shape, bool), np.float32(reference.alpha)
        for t, row in enumerate(rows):
            expected = mean + alpha * (effective[DENSE_FIRST + t - 1] - mean)
            chosen[t] = _chosen(row, expected, scale, theta, keep, width)
            effective[DENSE_FIRST + t] = np.where(chosen[t], row, expected)
    return Outcome(effective, float(chosen.mean()) if chosen.size else 0.0)


def _chosen(
    rows: Float, expected: Float, scale: Float, theta: float, keep: int | None, width: int
) -> NDArray[np.bool_]:
    """Which inputs of rows ``[..., K]`` are computed; see `simulate`."""
    k = rows.shape[-1]
    score = np.abs(rows - expected) * scale
    if width > 1:
        score = np.sqrt(np.add.reduceat(np.square(score), np.arange(0, k, width), axis=-1))
    chosen: NDArray[np.bool_] = score >= theta
    if keep is not None and keep < score.shape[-1]:
        largest = np.zeros(score.shape, bool)
        best = np.argpartition(-score, keep - 1, axis=-1)[..., :keep]
        np.put_along_axis(largest, best, True, axis=-1)
        chosen &= largest
    return np.repeat(chosen, width, axis=-1)[..., :k] if width > 1 else chosen


def threshold(
    run: Float, reference: Reference, scale: Float, fraction: float, width: int = 1
) -> float:
    """θ with which the selection computes `fraction` of the inputs: bisection in closed loop."""
    if fraction == 1:
        return 0.0
    low, high = 0.0, float(np.abs(run).max() * scale.max()) * 2 * math.sqrt(width)
    for _ in range(18):
        middle = (low + high) / 2
        if simulate(run, reference, scale, middle, None, width).kept > fraction:
            low = middle
        else:
            high = middle
    return high


def persistence(run: Float, mean: Float, scale: Float) -> float:
    """α of AR(1): Σ s² (x_t − μ)(x_{t−1} − μ) / Σ s² (x_{t−1} − μ)², between 0 and 1."""
    deviation = (run[DENSE_FIRST:] - mean) * scale
    size = float(np.square(deviation[:-1]).sum())
    if size == 0:
        return 0.0
    return min(1.0, max(0.0, float((deviation[1:] * deviation[:-1]).sum()) / size))


@dataclass(frozen=True)
class Loss:
    """How the output W x̂ differs from W x, for every token after the first ones.

    Attributes:
        gap: ‖W x̂ − W x‖ / ‖W x‖.
        cosine: Of W x̂ and W x.
    """

    gap: Float
    cosine: Float


def loss(weight: Float, run: Float, effective: Float) -> Loss:
    """The loss of a selection at ``weight`` [N, K]."""
    full, selected = (rows[DENSE_FIRST:] @ weight.T for rows in (run, effective))
    tiny = np.finfo(np.float32).tiny
    size = np.maximum(np.linalg.norm(full, axis=1), tiny)
    cosine = (full * selected).sum(axis=1) / (
        size * np.maximum(np.linalg.norm(selected, axis=1), tiny)
    )
    return Loss(np.linalg.norm(selected - full, axis=1) / size, cosine)
