"""Tiles of the affine formats: the planes of all groups, then scales and zero points by block.

`src/kernels/affine/affine.h` shows every byte.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats.declared import GROUP, TILE, Affine
from tamiz_ops.formats.parts import Array, Parts, pad_columns
from tamiz_ops.formats.planes import gather_quants, pad_rows, spread_planes

Bytes = npt.NDArray[np.uint8]


def pack_affine(format: Affine, parts: Parts) -> Bytes:
    """Packs a weight; `packing.pack_parts` says what of it."""
    _check(format, parts)
    k = parts.quants.shape[1]
    quants = pad_rows(pad_columns(parts.quants, GROUP, format.offset), format.offset)
    groups, tiles = quants.shape[1] // GROUP, len(quants) // TILE
    factors = [_by_block(array, format.scales_of(k)) for array in _factors(parts)]
    planes = spread_planes(format, quants, groups).reshape(tiles, -1)
    return np.hstack([planes, np.concatenate(factors, axis=2).reshape(tiles, -1)])


def unpack_affine(format: Affine, packed: Bytes, n: int, k: int) -> Parts:
    """Undoes `pack_affine`."""
    tiles, groups = len(packed), -(-k // GROUP)
    size = groups * GROUP * TILE * format.bits // 8
    planes = np.ascontiguousarray(packed[:, :size]).reshape(tiles, groups, -1)
    quants = gather_quants(format, planes, groups * GROUP)[:n, :k]
    count = format.scales_of(k)
    blocks = packed[:, size:].reshape(tiles, count, -1)
    used = -(-k // format.group) if format.group else 1
    scale_bytes = TILE * (2 if format.halves else 4)

    def by_output(field: Bytes, kind: str) -> Array:
        numbers = np.ascontiguousarray(field).view(kind)
        by_tile: Array = numbers.transpose(0, 2, 1).reshape(tiles * TILE, count)
        return by_tile[:n, :used]

    scales = by_output(blocks[..., :scale_bytes], "<f2" if format.halves else "<f4")
    if not format.minimum:
        return Parts(quants, scales)
    zeros = by_output(blocks[..., scale_bytes:], "<f4" if format.float_zeros else "u1")
    return Parts(quants, scales, zeros)


def _factors(parts: Parts) -> list[Array]:
    return [array for array in (parts.scales, parts.minima) if array is not None]


def _by_block(array: Array, count: int) -> Bytes:
    """Numbers ``[N, blocks]`` as bytes ``[tiles, blocks, 16 numbers]``."""
    padded = pad_rows(np.pad(array, ((0, 0), (0, count - array.shape[1]))))
    tiles = padded.reshape(-1, TILE, count).transpose(0, 2, 1)
    return np.ascontiguousarray(tiles).view(np.uint8)


def _check(format: Affine, parts: Parts) -> None:
    n, k = parts.quants.shape
    if n == 0 or k == 0:
        raise ValueError(f"quants is [{n}, {k}], expected [N, K] with positive N and K")
    if int(parts.quants.max()) >> format.bits:
        raise ValueError(f"quants holds {parts.quants.max()}, expected {format.bits} bits")
    shape = (n, -(-k // format.group) if format.group else 1)
    kinds = {
        "scales": np.float16 if format.halves else np.float32,
        "minima": (np.float32 if format.float_zeros else np.uint8) if format.minimum else None,
    }
    for name, kind in kinds.items():
        array = getattr(parts, name)
        if kind is None and array is None:
            continue
        if kind is None or array is None or array.shape != shape or array.dtype != kind:
            found = None if array is None else f"{array.dtype} {list(array.shape)}"
            expected = None if kind is None else f"{np.dtype(kind)} {list(shape)}"
            raise ValueError(f"{name} is {found}, expected {expected} for {format.name}")
        if not np.isfinite(array).all():
            row, column = np.argwhere(~np.isfinite(array))[0]
            raise ValueError(
                f"{name} of output {row} hold {array[row, column]} at {column}, expected finite "
                "numbers"
            )
