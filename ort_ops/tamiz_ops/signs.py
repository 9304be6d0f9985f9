"""Weights of one or two bits in the layout of the kernels, and back.

`src/kernels/signs.h` shows every byte. N outputs are padded to tiles of 16, K inputs to groups of
32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

GROUP, TILE = 32, 16
_QUAD = 4  # inputs whose signs are a nibble


def pack_signs(
    levels: npt.NDArray[np.int8], scales: npt.NDArray[np.float16], planes: int
) -> npt.NDArray[np.uint8]:
    """Packs w = scale * level.

    Args:
        levels: int8 [N, K]: -1 or 1, with two planes -3, -1, 1 or 3.
        scales: float16 [N].
        planes: bits of a level, 1 or 2.

    Returns:
        uint8 [ceil(N / 16), planes * ceil(K / 32) * 64 + 32].

    Raises:
        ValueError: an argument has another type, shape or value.
    """
    if planes not in (1, 2):
        raise ValueError(f"planes is {planes}, expected 1 or 2")
    if levels.dtype != np.int8 or levels.ndim != 2 or 0 in levels.shape:
        raise ValueError(f"levels is {levels.dtype} {list(levels.shape)}, expected int8 [N, K]")
    if scales.dtype != np.float16 or scales.shape != levels.shape[:1]:
        raise ValueError(
            f"scales is {scales.dtype} {list(scales.shape)}, expected float16 [{len(levels)}]"
        )
    known = [-1, 1] if planes == 1 else [-3, -1, 1, 3]
    if not np.isin(levels, known).all():
        raise ValueError(f"levels holds other values than {known}")
    n, k = levels.shape
    tiles, groups = -(-n // TILE), -(-k // GROUP)
    large = np.where(levels > 0, 1, -1)
    signs = [large, levels - 2 * large][:planes]
    packed = np.zeros(tiles, _tile(planes, groups))
    for number, plane in enumerate(signs):
        bits = np.zeros((tiles * TILE, groups * GROUP), np.uint8)
        bits[:n, :k] = plane > 0
        nibbles = bits.reshape(tiles, TILE, groups, 2, _QUAD, _QUAD)
        nibbles = (nibbles << np.arange(_QUAD, dtype=np.uint8)).sum(-1, dtype=np.uint8)
        both = nibbles[:, :, :, 0] | nibbles[:, :, :, 1] << 4
        packed["bits"][:, number] = both.transpose(0, 2, 1, 3)
    padded = np.zeros(tiles * TILE, np.float16)
    padded[:n] = scales
    packed["scales"] = padded.reshape(tiles, TILE)
    return packed.view(np.uint8).reshape(tiles, -1)


def dequantize_signs(
    packed: npt.NDArray[np.uint8], planes: int, n: int, k: int
) -> npt.NDArray[np.float32]:
    """The weight that `packed` stands for.

    Args:
        packed: what `pack_signs` returned.
        planes: bits of a level, 1 or 2.
        n: outputs.
        k: inputs.

    Returns:
        float32 [n, k].

    Raises:
        ValueError: `packed` has another type or shape.
    """
    tiles, groups = -(-n // TILE), -(-k // GROUP)
    tile = _tile(planes, groups)
    if packed.dtype != np.uint8 or packed.shape != (tiles, tile.itemsize):
        expected = [tiles, tile.itemsize]
        raise ValueError(
            f"packed is {packed.dtype} {list(packed.shape)}, expected uint8 {expected}"
        )
    fields = np.ascontiguousarray(packed).view(tile)[:, 0]
    both = fields["bits"].transpose(1, 0, 3, 2, 4)  # [planes, tiles, TILE, groups, _QUAD]
    nibbles = np.stack([both & 15, both >> 4], axis=4)
    bits = nibbles[..., None] >> np.arange(_QUAD, dtype=np.uint8) & 1
    signs = bits.reshape(planes, tiles * TILE, groups * GROUP)[:, :n, :k].astype(np.float32) * 2 - 1
    levels = signs[0] if planes == 1 else 2 * signs[0] + signs[1]
    weight: npt.NDArray[np.float32] = levels * fields["scales"].reshape(-1, 1)[:n].astype(
        np.float32
    )
    return weight


def _tile(planes: int, groups: int) -> np.dtype[Any]:
    return np.dtype([("bits", "u1", (planes, groups, TILE, _QUAD)), ("scales", "<f2", TILE)])
