"""Weights of which every 8 inputs are a pseudo-random matrix times three coefficients (SeedLM).

Shafipour et al. 2024, arXiv 2410.10714. `src/kernels/seedlm.h` shows every bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops import _native
from tamiz_ops.formats import GROUP, TILE

Array = npt.NDArray[Any]

_BLOCK, _RANK = 8, 3
_SHIFTS = (0, 8, 12)  # of a word's coefficients
_FACTOR, _TERM = np.uint32(0x9E3779B1), np.uint32(0x85EBCA6B)


def fit_seedlm(
    weight: Array, bits: int, root_m: Array | None = None, *, isa: str | None = None
) -> npt.NDArray[np.uint8]:
    """Finds seeds, coefficients and scales that minimise the weighted squared error.

    On one thread and deterministic, the same on every instruction set. All seeds are tried for
    every block of 8 inputs: 2^16 of them at 4 bits, some 20 microseconds a block; 2^11 at 3 bits.

    Args:
        weight: float32 [N, K], finite.
        bits: of a weight, 3 or 4.
        root_m: float32 [K], the square roots of the inputs' weights; None counts all alike.
        isa: instruction set of the search; None is the best one here.

    Returns:
        uint8 [ceil(N / 16), ceil(K / 32) * 64 * bits].

    Raises:
        ValueError: `bits` or a shape is another, or a scale is too large for fp16.
    """
    root = np.ones(weight.shape[-1:], np.float32) if root_m is None else root_m
    return _native.fit_seedlm(weight, root, bits, isa)


def unpack_seedlm(packed: Array, bits: int, n: int, k: int) -> npt.NDArray[np.float32]:
    """The weight that `packed` stands for, with the bits that the kernels compute with.

    Args:
        packed: what `fit_seedlm` returned.
        bits: 3 or 4.
        n: outputs.
        k: inputs.

    Returns:
        float32 [n, k].
    """
    words = _words(packed, bits)
    mask, offset = (1 << bits) - 1, 1 << bits - 1
    seed_mask = 0x00FF8808 if bits == 3 else 0xFFFF0000
    columns = _columns(words & np.uint32(seed_mask))
    quants = np.zeros((*words.shape, _BLOCK), np.int32)
    for column, shift in zip(columns, _SHIFTS, strict=True):
        t = (words >> np.uint32(shift) & np.uint32(mask)).astype(np.int32) - offset
        quants += t[..., None] * column
    nibbles = (words >> np.uint32(4) & np.uint32(15)).reshape(len(words), -1, GROUP // _BLOCK)
    halves = (nibbles << np.arange(0, 16, 4, dtype=np.uint32)).sum(axis=2).astype(np.uint16)
    scales = halves.view(np.float16).astype(np.float32)
    weight = quants.reshape(*scales.shape, GROUP).astype(np.float32) * scales[..., None]
    rows: npt.NDArray[np.float32] = weight.reshape(len(words), -1)[:n, :k]
    return rows


def _words(packed: Array, bits: int) -> npt.NDArray[np.uint32]:
    """[tiles * 16, blocks]"""
    blocks = np.ascontiguousarray(packed).reshape(len(packed), -1, TILE * bits)
    low = np.ascontiguousarray(blocks[:, :, : TILE * (4 if bits == 4 else 2)])
    words = low.view("<u4" if bits == 4 else "<u2").astype(np.uint32)
    if bits == 3:
        words |= blocks[:, :, 2 * TILE :].astype(np.uint32) << np.uint32(16)
    return np.ascontiguousarray(words.transpose(0, 2, 1)).reshape(len(packed) * TILE, -1)


def _columns(seeds: npt.NDArray[np.uint32]) -> list[npt.NDArray[np.int32]]:
    """u_p of every seed, [..., 8], -8 to 7."""
    state = seeds ^ seeds >> np.uint32(16)
    hashes = []
    for _ in range(_RANK):
        state = state * _FACTOR + _TERM
        state = state ^ state >> np.uint32(15)
        hashes.append(state)
    i = np.arange(_BLOCK)
    second, pair = i >> 1 & 1, i >> 2 << 1 | i & 1  # inputs lie in the order 0, 2, 1, 3
    both = np.where((pair < 2), hashes[0][..., None], hashes[1][..., None])
    columns = [both >> (8 * (2 * second + p) + 4 * (pair & 1)).astype(np.uint32) for p in (0, 1)]
    columns.append(hashes[2][..., None] >> (16 * second + 4 * pair).astype(np.uint32))
    return [(column & np.uint32(15)).astype(np.int32) - 8 for column in columns]
