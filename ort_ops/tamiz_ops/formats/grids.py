"""Weights whose quants number vectors of a codebook: their values, and how tiles hold them.

A group of 32 inputs of a tile is, for each vector of 4 or 8 inputs, the lowest 8 bits of 16 quants;
then the bits above, in fields of bytes; then the signs, a plane of one bit. See
`src/kernels/products/grids.h`, which has the codebooks.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops import _native
from tamiz_ops.formats.declared import GROUP, TILE, Grid

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


@cache
def _vectors(name: str) -> npt.NDArray[np.float32]:
    """The codebook of a format, ``[vectors, step]``."""
    return _native.grid(name).astype(np.float32)


def vector_values(format: Grid, quants: Array) -> npt.NDArray[np.float32]:
    """The inputs that quants stand for, without scales.

    Args:
        format: Their format.
        quants: uint32 ``[N, K / step]``.

    Returns:
        float32 ``[N, K]``.
    """
    values = _vectors(format.name)[quants & (1 << format.number_bits) - 1]
    above = quants[..., None] >> format.number_bits
    if format.signs:
        bits = above >> np.arange(format.step, dtype=np.uint32) & 1
        np.negative(values, out=values, where=bits.astype(bool))
    else:
        values += np.float32(1) - 2 * (above & 1).astype(np.float32)
    whole: npt.NDArray[np.float32] = values.reshape(len(quants), -1)
    return whole


def spread_vectors(format: Grid, quants: Array, groups: int) -> Bytes:
    """Quants of whole tiles as bytes ``[tiles, groups, bytes]``.

    Args:
        format: Their format.
        quants: uint32 ``[16 tiles, groups · 32 / step]``.
        groups: Groups of 32 inputs.
    """
    tiles, vectors = len(quants) // TILE, GROUP // format.step
    by_group = quants.reshape(tiles, TILE, groups, vectors).transpose(0, 2, 3, 1)
    parts = [by_group & 255]
    if format.high:
        fields = 8 // format.high
        high = by_group >> 8 & (1 << format.high) - 1
        if format.signs:
            high &= (1 << format.number_bits - 8) - 1
        split = high.reshape(tiles, groups, vectors // fields, fields, TILE)
        shifts = np.arange(fields, dtype=np.uint32)[:, None] * format.high
        parts.append(np.bitwise_or.reduce(split << shifts, axis=3))
    if format.signs:
        inputs = np.arange(format.step, dtype=np.uint32)[:, None]
        signs = by_group[..., None, :] >> format.number_bits + inputs & 1
        quads = signs.reshape(tiles, groups, 8, 4, TILE)
        plane = quads << np.arange(8, dtype=np.uint32)[:, None, None]
        parts.append(np.bitwise_or.reduce(plane, axis=2).transpose(0, 1, 3, 2))
    flat = [part.reshape(tiles, groups, -1).astype(np.uint8) for part in parts]
    return np.concatenate(flat, axis=2)


def gather_vectors(format: Grid, planes: Bytes, k: int) -> Array:
    """Undoes `spread_vectors`: uint32 ``[tiles * 16, k / step]``."""
    tiles, groups, vectors = len(planes), k // GROUP, GROUP // format.step
    bytes_of_group = planes.reshape(tiles, groups, -1).astype(np.uint32)
    low = TILE * vectors
    quants: Array = bytes_of_group[..., :low].reshape(tiles, groups, vectors, TILE)
    signs_at = low
    if format.high:
        fields = 8 // format.high
        signs_at += low // fields
        held = bytes_of_group[..., low:signs_at].reshape(tiles, groups, -1, 1, TILE)
        shifts = np.arange(fields, dtype=np.uint32)[:, None] * format.high
        high = held >> shifts & (1 << format.high) - 1
        quants = quants | high.reshape(quants.shape) << 8
    if format.signs:
        plane = bytes_of_group[..., signs_at:].reshape(tiles, groups, 1, TILE, 4)
        quads = plane >> np.arange(8, dtype=np.uint32)[:, None, None] & 1
        inputs = quads.transpose(0, 1, 2, 4, 3).reshape(tiles, groups, vectors, format.step, TILE)
        places = format.number_bits + np.arange(format.step, dtype=np.uint32)[:, None]
        quants = quants | np.bitwise_or.reduce(inputs << places, axis=3)
    return np.ascontiguousarray(quants.transpose(0, 3, 1, 2)).reshape(tiles * TILE, -1)
