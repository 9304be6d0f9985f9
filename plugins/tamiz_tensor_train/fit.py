r"""Fits tt: W as a train of d cores (Oseledets 2011; for linear layers Novikov et al. 2015).

    Ŵ[(i_1 … i_d), (j_1 … j_d)] = G_1[i_1, j_1] G_2[i_2, j_2] … G_d[i_d, j_d],
    N = n_1 … n_d, K = m_1 … m_d, G_k[i_k, j_k] a matrix r_{k−1} × r_k, r_0 = r_d = 1

TT-SVD: core by core the leading singular vectors of what is left, as a matrix
(r_{k−1} n_k m_k) × (the rest). Dropping singular values of norm ε ‖W‖ / √(d − 1) in each of the
d − 1 steps keeps ‖W − Ŵ‖ ≤ ε ‖W‖.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tamiz.api import Cost, Fit, FitError, Site, Statistics
from tamiz_tensor_train.config import TensorTrainConfig

Float = NDArray[np.float32]


def fit(site: Site, weight: Float, statistics: Statistics | None, config: TensorTrainConfig) -> Fit:
    """Decomposes one weight.

    Args:
        site: The site.
        weight: float32 ``[N, K]``.
        statistics: Not used: weights of the inputs do not factor over the cores.
        config: The configuration.

    Returns:
        ``core.0`` to ``core.d−1``, float32 ``[r_{k−1}, n_k, m_k, r_k]``, and the largest rank,
        ``tt.rank``.

    Raises:
        FitError: The train would be larger than the weight, or the weight is not finite or too
            large.
    """
    if not np.isfinite(weight).all():
        raise FitError("it holds weights that are not finite")
    n, k = weight.shape
    cores = decompose(weight, config)
    stored = sum(core.nbytes for core in cores)
    if stored > 4 * n * k:
        raise FitError(f"its train would take {stored / (4 * n * k):.2f} times the weight's bytes")
    if not all(np.isfinite(core).all() for core in cores):
        raise FitError("it holds weights that are too large for float32 cores")
    return Fit(
        tensors={f"core.{index}": core for index, core in enumerate(cores)},
        attributes={},
        metrics={"tt.rank": float(max(core.shape[3] for core in cores))},
        bits_per_weight=8 * stored / (n * k),
    )


def decompose(weight: Float, config: TensorTrainConfig) -> list[Float]:
    """The cores of ``[N, K]``; see the top of this file."""
    d = config.cores
    outputs, inputs = weight.shape
    n, m = dimensions(outputs, inputs, d)
    pairs = [axis for index in range(d) for axis in (index, d + index)]
    left = weight.astype(np.float64).reshape(*n, *m).transpose(pairs)
    budget = config.tolerance * float(np.linalg.norm(left)) / math.sqrt(max(d - 1, 1))
    cores, rank = [], 1
    for index in range(d - 1):
        u, s, v = np.linalg.svd(left.reshape(rank * n[index] * m[index], -1), full_matrices=False)
        kept = _rank(s, budget) if config.rank is None else min(config.rank, len(s))
        cores.append(u[:, :kept].reshape(rank, n[index], m[index], kept))
        left, rank = s[:kept, None] * v[:kept], kept
    cores.append(left.reshape(rank, n[-1], m[-1], 1))
    with np.errstate(over="ignore"):
        return [core.astype(np.float32) for core in cores]


def _rank(s: NDArray[np.float64], budget: float) -> int:
    """How many singular values stay so that those dropped have at most that norm."""
    tail = np.sqrt(np.cumsum(np.square(s[::-1])))[::-1]  # norm of s[i:]
    return max(1, int(np.count_nonzero(tail > budget)))


def dequantize(site: Site, fit: Fit) -> Float:
    """Ŵ, float32 ``[N, K]``."""
    cores = [fit.tensors[f"core.{index}"] for index in range(len(fit.tensors))]
    w = np.ones((1, 1, 1))  # [N so far, K so far, rank]
    for core in cores:
        w = np.einsum("ijr,rnms->injms", w, core.astype(np.float64))
        w = w.reshape(w.shape[0] * w.shape[1], -1, w.shape[4])
    return w[:, :, 0].astype(np.float32)


def cost(site: Site, config: TensorTrainConfig) -> Cost:
    """Exact where the rank is given, else the most: the weight's own bytes."""
    size = site.out_features * site.in_features
    if config.rank is not None:
        n, m = dimensions(site.out_features, site.in_features, config.cores)
        sizes = [a * b for a, b in zip(n, m, strict=True)]
        ranks = [1]
        for index, here in enumerate(sizes[:-1], 1):
            ranks.append(min(config.rank, ranks[-1] * here, math.prod(sizes[index:])))
        size = sum(r * c * s for r, c, s in zip(ranks, sizes, [*ranks[1:], 1], strict=True))
    return Cost(4 * size, 4 * size)


def schedule(site: Site, config: TensorTrainConfig) -> list[dict[str, float]]:
    """Tolerances, the largest first."""
    return [{"tolerance": tolerance} for tolerance in (0.2, 0.1, 0.05, 0.02)]


def dimensions(n: int, k: int, cores: int) -> tuple[list[int], list[int]]:
    """n_1 … n_d ascending and m_1 … m_d descending, so that the cores are of like size."""
    return sorted(_factors(n, cores)), sorted(_factors(k, cores), reverse=True)


def _factors(size: int, count: int) -> list[int]:
    """`count` factors of `size`, as equal as its primes allow: the largest prime first."""
    primes, rest, prime = [], size, 2
    while rest > 1:
        while rest % prime == 0:
            primes.append(prime)
            rest //= prime
        prime += 1
    factors = [1] * count
    for prime in reversed(primes):
        factors[factors.index(min(factors))] *= prime
    return factors
