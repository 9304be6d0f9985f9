"""Quants of a tile as the planes that the kernels read, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats.declared import GROUP, TILE, Format

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_WORD = 4  # inputs of one output that lie side by side


def spread_planes(format: Format, quants: Bytes, groups: int) -> Bytes:
    """Quants of whole tiles as planes [tiles, groups, bytes]."""
    tiles = len(quants) // TILE
    planes, low = [], 0
    for bits in format.planes:
        fields = 8 // bits  # of a byte
        values = quants if format.bits == bits else quants >> low & ((1 << bits) - 1)
        split = values.reshape(tiles, TILE, groups, -1, fields, _WORD)
        both = split[..., 0, :]
        for field in range(1, fields):
            both = both | split[..., field, :] << (bits * field)
        planes.append(both.transpose(0, 2, 3, 1, 4).reshape(tiles, groups, -1))
        low += bits
    return planes[0] if len(planes) == 1 else np.concatenate(planes, axis=2)


def gather_quants(format: Format, planes: Bytes, k: int) -> Bytes:
    """Undoes `spread_planes`: uint8 [tiles * 16, k]."""
    tiles = len(planes)
    groups = planes.reshape(tiles, k // GROUP, -1)
    quants = np.zeros((tiles * TILE, k), np.uint8)
    low = begin = 0
    for bits in format.planes:
        end = begin + GROUP * TILE * bits // 8
        vectors = groups[..., begin:end].reshape(tiles, k // GROUP, -1, TILE, 1, _WORD)
        shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
        values = vectors >> shifts & ((1 << bits) - 1)
        quants |= values.transpose(0, 3, 1, 2, 4, 5).reshape(tiles * TILE, k) << low
        low, begin = low + bits, end
    return quants


def pad_rows(rows: Array, value: int = 0) -> Array:
    """With rows of `value` to whole tiles."""
    more = -len(rows) % TILE
    if not more:
        return np.ascontiguousarray(rows)
    return np.pad(rows, ((0, more), (0, 0)), constant_values=value)
