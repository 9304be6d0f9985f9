"""Rounds a matrix to the numbers that the kernels read: by min-max in groups of 32 inputs, or to
signs.

int4: w ≈ scale · q + minimum, scale = (max − min) / 15, minimum = min
int8: w ≈ scale · q, scale = max |w| / 127
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from tamiz.api import FitError
from tamiz_ops.formats import GROUP

_REFINED = 6


def refined_tiles(tiles: int) -> int:
    """How many of a head's tiles are refined by default: a sixth."""
    return -(-tiles // _REFINED)


def pack(matrix: NDArray[np.float32], bits: int) -> NDArray[np.uint8]:
    """The packed tensor of ``[N, K]`` in 4 or 8 bits.

    Raises:
        FitError: A scale is not finite, or too large for fp16.
    """
    n, k = matrix.shape
    groups = np.pad(matrix, ((0, 0), (0, -k % GROUP)), mode="edge").reshape(n, -1, GROUP)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    minima = np.where(bits == 4, low, 0).astype(np.float16)
    largest = (high - low) / 15 if bits == 4 else np.maximum(high, -low) / 127
    scales = largest.astype(np.float16)
    step = scales.astype(np.float32)[..., None]
    q = (groups - minima.astype(np.float32)[..., None]) / np.where(step == 0, 1, step)
    q = np.clip(np.rint(q), 0 if bits == 4 else -127, 15 if bits == 4 else 127)
    q = np.ascontiguousarray(q.reshape(n, -1)[:, :k])
    if not (np.isfinite(scales).all() and np.isfinite(minima).all()):
        raise FitError("its weight holds numbers that are not finite or too large for a sketch")
    packed: NDArray[np.uint8]
    if bits == 4:
        packed = tamiz_ops.pack_int4(q.astype(np.uint8), scales, minima)
    else:
        packed = tamiz_ops.pack_int8(q.astype(np.int8), scales)
    return packed


def signs(matrix: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Signs ±1 and scales ``[N]`` with the least squared error: scale = mean |row|."""
    sign_matrix = np.where(matrix >= 0, np.int8(1), np.int8(-1))
    return sign_matrix, np.abs(matrix).mean(axis=1).astype(np.float16)
