r"""Bases W0 of seed-delta, and their fit.

    xor-circulant   W0[o, i] = r[o] c[o ^ i]
    hadamard        W0 = diag(r) Q_depth … Q_1, Q_j = H D_j P_j / √L, of its result the first N
    seedlm          W0[o, 8b … 8b + 7] = s U t, U [8, 3] from a seed, t small integers
                    (arXiv 2410.10714; `ort_ops/src/kernels/deltas/seedlm.h`)

H is the Walsh-Hadamard matrix of L, the least power of two not under N and K; D_j are signs and P_j
permutations from a seed (`ort_ops/src/ops/products/seeded_base.h` has every bit). r and c minimise
Σ m_i (W − W0)², m the imatrix: c by alternation with r, r in closed form, r[o] = ⟨W_o, B_o⟩ / ⟨B_o,
B_o⟩ with B the base without r. Of the stack the best of `perm_trials` seeds stays; SeedLM has the
best of 2^11 or 2^16 for every 8 weights (`tamiz_ops.fit_seedlm`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from tamiz_ops.deltas import splitmix64
from tamiz_seed_delta.config import SeedDeltaConfig

#: Inputs of a stack that are computed at a time: a row of each is as long as a large head.
_INPUTS = 16
_ALTERNATIONS = 4

Float = NDArray[np.float32]
Double = NDArray[np.float64]


@dataclass(frozen=True)
class Base:
    """A fitted base.

    Attributes:
        weight: W0, float32 ``[N, K]``.
        tensors: ``row_scale`` float32 ``[N]``, ``spectrum`` float32 ``[L]``, ``seedlm`` uint8,
            where it has them.
        seed: Of the Hadamard stack.
    """

    weight: Float
    tensors: dict[str, NDArray[Any]]
    seed: int = 0


def fit_base(weight: Float, root_m: Float, config: SeedDeltaConfig) -> Base:
    """Fits the base of the configuration.

    Args:
        weight: float32 ``[N, K]``.
        root_m: √m of every input, float32 ``[K]``.
        config: The configuration.

    Raises:
        ValueError: A scale of SeedLM is too large for fp16.
    """
    if config.base == "seedlm":
        bits = config.base_bits
        packed = tamiz_ops.fit_seedlm(weight, bits, root_m)
        return Base(tamiz_ops.unpack_seedlm(packed, bits, *weight.shape), {"seedlm": packed})
    m = np.square(root_m.astype(np.float64))
    if config.base == "xor-circulant":
        return _fit_circulant(weight.astype(np.float64), m, config.row_scale)
    if config.base == "hadamard":
        return _fit_stack(weight.astype(np.float64), m, config)
    return Base(np.zeros_like(weight), {})


def base_weight(attributes: dict[str, Any], tensors: dict[str, Any]) -> Float:
    """W0 ``[N, K]`` from what the op reads, as it multiplies."""
    n, k, name = attributes["n"], attributes["k"], attributes["base"]
    if name == "none":
        return np.zeros((n, k), np.float32)
    if name == "seedlm":
        return tamiz_ops.unpack_seedlm(tensors["seedlm"], attributes["base_bits"], n, k)
    r: Double = tensors["row_scale"].astype(np.float64)[:, None]
    if name == "hadamard":
        factors = stack(n, k, attributes["depth"], attributes["seed"])
    else:
        factors = hadamard(tensors["spectrum"].astype(np.float64))[_xor(n, k)]
    return (r * factors).astype(np.float32)


def hadamard(v: Double) -> Double:
    """H v along the last dimension, a power of two long; not scaled."""
    size = v.shape[-1]
    v, half = v.copy(), 1
    while half < size:
        pairs = v.reshape(*v.shape[:-1], -1, 2, half)
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        difference = a - b
        a += b
        b[...] = difference
        half *= 2
    return v


def stack(n: int, k: int, depth: int, seed: int) -> Double:
    """Q_depth … Q_1 as a matrix ``[N, K]``."""
    size = length(n, k)
    factors = [_factor(size, seed, j) for j in range(depth)]
    result = np.empty((n, k))
    for start in range(0, k, _INPUTS):
        v = np.eye(min(_INPUTS, k - start), size, start)  # a row an input
        for order, flip in factors:
            v = hadamard(v[:, order] * flip) / np.sqrt(size)
        result[:, start : start + len(v)] = v[:, :n].T
    return result


def _factor(size: int, seed: int, j: int) -> tuple[NDArray[np.int64], Double]:
    """P and the diagonal of D of factor `j`."""
    index = np.arange(size, dtype=np.uint64)
    step, first = splitmix64(seed, np.array([2 * j, 2 * j + 1]))
    with np.errstate(over="ignore"):
        order = ((step | np.uint64(1)) * index + first) & np.uint64(size - 1)
    words = splitmix64(seed, ((j + 1) << 32) + np.arange(-(-size // 64)))
    signs = words[(index // np.uint64(64)).astype(np.int64)] >> index % np.uint64(64)
    return order.astype(np.int64), 1 - 2.0 * (signs & np.uint64(1)).astype(np.float64)


def length(n: int, k: int) -> int:
    """L, the least power of two not under n and k."""
    return 1 << (max(n, k) - 1).bit_length()


def _xor(n: int, k: int) -> NDArray[np.int64]:
    index: NDArray[np.int64] = np.arange(n)[:, None] ^ np.arange(k)
    return index


def _row_scale(weight: Double, base: Double, m: Double, each: bool) -> Double:
    """r ``[N]``; one value in all where not `each`."""
    dot: Double = np.einsum("nk,nk,k->n", weight, base, m)
    square: Double = np.einsum("nk,nk,k->n", base, base, m)
    if not each:
        dot, square = np.full_like(dot, dot.sum()), np.full_like(square, square.sum())
    return np.divide(dot, square, out=np.zeros_like(dot), where=square > 0)


def _fit_circulant(weight: Double, m: Double, each: bool) -> Base:
    n, k = weight.shape
    size, where = length(n, k), _xor(n, k)
    r, c = np.ones(n), np.zeros(size)
    for _ in range(_ALTERNATIONS if each else 1):
        factor = r[:, None] * m
        top = np.bincount(where.ravel(), (factor * weight).ravel(), size)
        bottom = np.bincount(where.ravel(), (factor * r[:, None]).ravel(), size)
        c = np.divide(top, bottom, out=np.zeros(size), where=bottom > 0)
        r = _row_scale(weight, c[where], m, each)
    tensors = {
        "row_scale": r.astype(np.float32),
        "spectrum": (hadamard(c) / size).astype(np.float32),
    }
    return Base(base_weight({"n": n, "k": k, "base": "xor-circulant"}, tensors), tensors)


def _fit_stack(weight: Double, m: Double, config: SeedDeltaConfig) -> Base:
    n, k = weight.shape
    best, best_gain, best_seed = np.zeros(n), -1.0, 0
    for seed in range(config.perm_trials):
        base = stack(n, k, config.depth, seed)
        r = _row_scale(weight, base, m, config.row_scale)
        gain = float(np.einsum("n,nk,nk,k->", r, weight, base, m))
        if gain > best_gain:
            best, best_gain, best_seed = r, gain, seed
    tensors = {"row_scale": best.astype(np.float32)}
    attributes = {"n": n, "k": k, "base": "hadamard", "depth": config.depth, "seed": best_seed}
    return Base(base_weight(attributes, tensors), tensors, best_seed)
