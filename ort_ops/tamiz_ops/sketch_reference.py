"""Sketches of keys and the choice of keys by them, in NumPy: the formulas of kernels/sketch-inl.h.

Everything that decides which keys are attended to is computed in float32 in the kernels' order, so
that the choice is the same key for key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Units of a score in a nat, its limits, and how far below the best one ranks are told apart.
_UNITS, _LEAST, _MOST, _REACH = np.float32(256), -32766, 32767, 65532


def sketch(keys: Array, mean: Array | None, planes: int, epsilon: float) -> Array:
    """Sketches as the cache holds them.

    Args:
        keys: float32 [..., dim].
        mean: [dim], subtracted first; None is 0.
        planes: 1 for signs, 2 for ternary.
        epsilon: of ternary: |z| up to epsilon * mean |z| counts as 0.

    Returns:
        float32 [..., words]: the planes' bits, 32 a word, then gamma.
    """
    z = rotate(keys, mean)
    t, gamma = _signs(z, planes, epsilon)
    bits = np.concatenate([t > 0, t < 0][:planes], axis=-1)
    words = np.packbits(bits, axis=-1, bitorder="little").view(np.uint32)
    return np.concatenate([words, gamma[..., None].view(np.uint32)], axis=-1).view(np.float32)


def rotate(x: Array, mean: Array | None = None) -> Array:
    """z = H S (x - mean), float32 [..., bits]: fixed signs S, the Hadamard matrix H of `bits`."""
    bits = max(64, 1 << (x.shape[-1] - 1).bit_length())
    z = np.zeros((*x.shape[:-1], bits), np.float32)
    z[..., : x.shape[-1]] = x if mean is None else x - mean
    z[..., _flipped(bits)] *= -1
    half = 1
    while half < bits:
        pairs = z.reshape(*x.shape[:-1], -1, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        z = np.stack([a + b, a - b], axis=-2).reshape(z.shape)
        half *= 2
    return z


def _flipped(bits: int) -> Array:
    """Lowest bit of splitmix64 (Steele et al. 2014) at 0..bits-1."""
    with np.errstate(over="ignore"):
        x = np.arange(1, bits + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    flipped: Array = (x ^ (x >> np.uint64(31))) & np.uint64(1) == 1
    return flipped


def _sum(sizes: Array) -> Array:
    """Sum over the last axis in eight chains."""
    chains = np.zeros((*sizes.shape[:-1], 8), np.float32)
    for start in range(0, sizes.shape[-1], 8):
        chains = chains + sizes[..., start : start + 8]
    for half in (4, 2, 1):
        chains = chains[..., :half] + chains[..., half : 2 * half]
    return chains[..., 0]


def _signs(z: Array, planes: int, epsilon: float) -> tuple[Array, Array]:
    """t in {-1, 0, 1} [..., bits] and gamma [...]."""
    size = np.abs(z)
    mean = _sum(size) / np.float32(z.shape[-1])
    if planes == 1:
        return np.where(z * np.float32(-1) > 0, -1, 1), _capped(mean, mean)
    above = (np.float32(epsilon) * mean)[..., None]
    t = (z > above).astype(np.int64) - (z < -above)
    count = np.maximum((size > above).sum(-1), 1).astype(np.float32)
    return t, _capped(_sum(np.where(size > above, size, np.float32(0))) / count, mean)


def _capped(gamma: Array, mean: Array) -> Array:
    return np.where(np.isfinite(mean), gamma, np.float32(np.nan)).astype(np.float32)


def scores(query: Array, row: Array, bits: int, planes: int, epsilon: float, q_bits: int) -> Array:
    """q.k_j, roughly: gamma_j * scale / bits * sum_d q_d t_jd, in units of 1/256.

    Args:
        query: float32 [dim].
        row: float32 [keys, words]: sketches.
        bits: of a sketch.
        planes: of a sketch.
        epsilon: of ternary sketches.
        q_bits: bits of the rotated query's elements; 2 packs it as the keys are.

    Returns:
        float32 [keys].
    """
    z = rotate(query)
    if not np.isfinite(z).all():
        q, scale = np.zeros(bits, np.int64), np.float32(np.nan)
    elif q_bits == 2:
        q, scale = _signs(z, planes, epsilon)
        scale = _sum(np.abs(z)) / np.float32(bits)
    else:
        scale = np.abs(z).max() / np.float32((1 << (q_bits - 1)) - 1)
        q = np.rint(z / scale).astype(np.int64) if scale else np.zeros(bits, np.int64)
    words = np.ascontiguousarray(row[:, :-1]).view(np.uint8)
    set_bits = np.unpackbits(words, axis=-1, bitorder="little").astype(np.int64)
    positive, negative = set_bits[:, :bits], set_bits[:, bits:]
    t = 2 * positive - 1 if planes == 1 else positive - negative
    with np.errstate(invalid="ignore", over="ignore"):
        result: Array = row[:, -1] * (t @ q).astype(np.float32) * np.float32(scale / bits * _UNITS)
    return result


def select(
    score: Array, visible: Array, begin: int, recent: int, sinks: int, keep: int
) -> list[int]:
    """The keys attended to in a decode step, ascending.

    Args:
        score: float32 [queries, keys].
        visible: bool [keys].
        begin: keys before are hidden, unless they are sinks.
        recent: keys from there on are in.
        sinks: first visible keys that are in.
        keep: how many of the others; those with the largest max over queries of score - largest
            score. Among equals the lower ones; those whose score is not finite before all.
    """
    keys = len(visible)
    first = np.flatnonzero(visible)[:sinks]
    index = np.arange(keys)
    late = visible & (index >= recent)
    candidates = np.flatnonzero(visible & (index >= max(begin, sinks)) & (index < recent))
    share = np.full(len(candidates), -np.inf)
    for row in score[:, candidates]:
        finite = row < 2.0**31
        whole = np.trunc(np.clip(np.where(finite, row, _LEAST).astype(np.float64), _LEAST, _MOST))
        below = np.maximum(whole - whole.max(initial=_LEAST), -_REACH)
        share = np.maximum(share, np.where(finite, below, np.inf))
    best = [j for j in sorted(range(len(share)), key=lambda j: -share[j])]
    chosen = [j for j in candidates[best].tolist() if j not in first][:keep]
    return sorted({*first.tolist(), *np.flatnonzero(late).tolist(), *chosen})
