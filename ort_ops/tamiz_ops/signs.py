"""Weights of one bit in the layout of the kernels, and back.

`src/kernels/selection/signs.h` shows every byte. N outputs are padded to tiles of 16, K inputs to
groups of 32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats import GROUP, TILE
from tamiz_ops.pack import check_packed

_QUAD = 4  # inputs whose signs are a nibble
_WORD = 4  # bytes


def pack_signs(
    levels: npt.NDArray[np.int8], scales: npt.NDArray[np.float16]
) -> npt.NDArray[np.uint8]:
    """Packs w = scale * level.

    Args:
        levels: int8 [N, K], -1 or 1.
        scales: float16 [N].

    Returns:
        uint8 [ceil(N / 16), ceil(K / 32) * 64 + 32].

    Raises:
        ValueError: an argument has another type, shape or value.
    """
    _check_levels(levels)
    if scales.dtype != np.float16 or scales.shape != levels.shape[:1]:
        raise ValueError(
            f"scales is {scales.dtype} {list(scales.shape)}, expected float16 [{len(levels)}]"
        )
    n, k = levels.shape
    tiles, groups = -(-n // TILE), -(-k // GROUP)
    bits = np.zeros((tiles * TILE, groups * GROUP), np.uint8)
    bits[:n, :k] = levels > 0
    nibbles = bits.reshape(tiles, TILE, groups, 2, _QUAD, _QUAD)
    nibbles = (nibbles << np.arange(_QUAD, dtype=np.uint8)).sum(-1, dtype=np.uint8)
    packed = np.zeros(tiles, _tile(groups))
    packed["bits"] = (nibbles[:, :, :, 0] | nibbles[:, :, :, 1] << 4).transpose(0, 2, 1, 3)
    padded = np.zeros(tiles * TILE, np.float16)
    padded[:n] = scales
    packed["scales"] = padded.reshape(tiles, TILE)
    return packed.view(np.uint8).reshape(tiles, -1)


def pack_sign_words(levels: npt.NDArray[np.int8]) -> npt.NDArray[np.uint8]:
    """Packs signs for `SignMask`, whose inputs are words of 32 bits.

    `src/kernels/chosen/predict.h` shows every byte.

    Args:
        levels: int8 [N, K], -1 or 1.

    Returns:
        uint8 [ceil(N / 16), ceil(K / 32) * 64].

    Raises:
        ValueError: `levels` has another type, shape or value.
    """
    _check_levels(levels)
    n, k = levels.shape
    bits = np.zeros((-(-n // TILE) * TILE, -(-k // GROUP) * GROUP), bool)
    bits[:n, :k] = levels > 0
    packed = np.packbits(bits, axis=1, bitorder="little")
    words = packed.reshape(-1, TILE, packed.shape[1] // _WORD, _WORD).swapaxes(1, 2)
    return np.ascontiguousarray(words).reshape(len(words), -1)


def unpack_sign_words(packed: npt.NDArray[np.uint8], n: int, k: int) -> npt.NDArray[np.int8]:
    """Undoes `pack_sign_words`.

    Args:
        packed: uint8 [ceil(n / 16), ceil(k / 32) * 64].
        n: outputs.
        k: inputs.

    Returns:
        int8 [n, k], -1 or 1.

    Raises:
        ValueError: `packed` has another type or shape.
    """
    tiles, groups = -(-n // TILE), -(-k // GROUP)
    check_packed(packed, [tiles, groups * TILE * _WORD])
    words = packed.reshape(tiles, groups, TILE, _WORD).swapaxes(1, 2).reshape(tiles * TILE, -1)
    bits = np.unpackbits(words, axis=1, bitorder="little")[:n, :k]
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)


def _check_levels(levels: npt.NDArray[np.int8]) -> None:
    if levels.dtype != np.int8 or levels.ndim != 2 or 0 in levels.shape:
        raise ValueError(f"levels is {levels.dtype} {list(levels.shape)}, expected int8 [N, K]")
    if not np.isin(levels, [-1, 1]).all():
        raise ValueError("levels holds other values than [-1, 1]")


def dequantize_signs(packed: npt.NDArray[np.uint8], n: int, k: int) -> npt.NDArray[np.float32]:
    """The weight that `packed` stands for.

    Args:
        packed: what `pack_signs` returned.
        n: outputs.
        k: inputs.

    Returns:
        float32 [n, k].

    Raises:
        ValueError: `packed` has another type or shape.
    """
    tiles, groups = -(-n // TILE), -(-k // GROUP)
    tile = _tile(groups)
    if packed.dtype != np.uint8 or packed.shape != (tiles, tile.itemsize):
        expected = [tiles, tile.itemsize]
        raise ValueError(
            f"packed is {packed.dtype} {list(packed.shape)}, expected uint8 {expected}"
        )
    fields = np.ascontiguousarray(packed).view(tile)[:, 0]
    both = fields["bits"].transpose(0, 2, 1, 3)  # [tiles, TILE, groups, _QUAD]
    nibbles = np.stack([both & 15, both >> 4], axis=3)
    bits = nibbles[..., None] >> np.arange(_QUAD, dtype=np.uint8) & 1
    signs = bits.reshape(tiles * TILE, groups * GROUP)[:n, :k].astype(np.float32) * 2 - 1
    scales = fields["scales"].reshape(-1, 1)[:n].astype(np.float32)
    weight: npt.NDArray[np.float32] = signs * scales
    return weight


def _tile(groups: int) -> np.dtype[Any]:
    return np.dtype([("bits", "u1", (groups, TILE, _QUAD)), ("scales", "<f2", TILE)])
