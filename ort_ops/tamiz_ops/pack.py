"""Weights in the layout of the kernels, and back.

A tile is 16 outputs, a group 32 inputs. In a group come first the quants, then 16 fp16 scales and,
for 4 bits, 16 fp16 minima; or both are bytes that count a unit of their output, and the units
follow the groups. `src/kernels/packing.h` shows every byte. N outputs and K inputs are padded with
zeros.

Weights of 4 bits can also be packed by input channel: `tamiz_ops.channels`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops import formats
from tamiz_ops.formats import FORMATS, GROUP, TILE, Parts, int_format

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]

_LEVELS = 16  # inputs whose ternary levels share a word
_LEVEL = np.arange(_LEVELS, dtype=np.uint32)
_TERNARY_GROUP = np.dtype([("words", "<u4", (2, TILE)), ("scales", np.float16, TILE)])
_LEVEL_SHIFTS = 16 * (_LEVEL // 2 % 2) + 4 * (_LEVEL // 4) + 2 * (_LEVEL % 2)


def pack_int4(quants: Bytes, scales: Halves, minima: Halves) -> Bytes:
    """Packs w = scale * q + minimum.

    Args:
        quants: uint8 [N, K], 0 to 15.
        scales: float16 [N, ceil(K / 32)].
        minima: float16 [N, ceil(K / 32)].

    Returns:
        uint8 [ceil(N / 16), ceil(K / 32) * 320].

    Raises:
        ValueError: an argument has another type or shape, or a quant is over 15.
    """
    check_int4(quants, {"scales": scales, "minima": minima})
    return formats.pack_parts(FORMATS["q4_1"], Parts(quants, scales, minima))


def unpack_int4(packed: Bytes, n: int, k: int) -> tuple[Bytes, Halves, Halves]:
    """Undoes `pack_int4`.

    Args:
        packed: uint8 [ceil(n / 16), ceil(k / 32) * 320].
        n: outputs.
        k: inputs.

    Returns:
        quants uint8 [n, k], scales float16 [n, ceil(k / 32)], minima likewise.

    Raises:
        ValueError: `packed` has another type or shape.
    """
    parts = formats.unpack_parts(FORMATS["q4_1"], packed, n, k)
    assert parts.scales is not None
    assert parts.minima is not None
    return parts.quants, parts.scales, parts.minima


def pack_int4_in_units(quants: Bytes, scales: Bytes, minima: Bytes, units: Halves) -> Bytes:
    """Packs w = units / 256 * (scale * q - 8 * minimum).

    Args:
        quants: uint8 [N, K], 0 to 15.
        scales: uint8 [N, ceil(K / 32)].
        minima: uint8 [N, ceil(K / 32)].
        units: float16 [N].

    Returns:
        uint8 [ceil(N / 16), ceil(K / 32) * 288 + 32].

    Raises:
        ValueError: an argument has another type or shape, or a quant is over 15.
    """
    check_in_units(quants, scales, minima, units)
    parts = Parts(quants, scales, minima, units[:, None])
    return formats.pack_parts(FORMATS["q4_units"], parts)


def unpack_int4_in_units(packed: Bytes, n: int, k: int) -> tuple[Bytes, Bytes, Bytes, Halves]:
    """Undoes `pack_int4_in_units`.

    Args:
        packed: uint8 [ceil(n / 16), ceil(k / 32) * 288 + 32].
        n: outputs.
        k: inputs.

    Returns:
        quants uint8 [n, k], scales uint8 [n, ceil(k / 32)], minima likewise, units float16 [n].

    Raises:
        ValueError: `packed` has another type or shape.
    """
    parts = formats.unpack_parts(FORMATS["q4_units"], packed, n, k)
    assert parts.scales is not None
    assert parts.minima is not None
    assert parts.d is not None
    return parts.quants, parts.scales, parts.minima, parts.d[:, 0]


def pack_int8(quants: npt.NDArray[np.int8], scales: Halves) -> Bytes:
    """Packs w = scale * q.

    Args:
        quants: int8 [N, K], -127 to 127.
        scales: float16 [N, ceil(K / 32)].

    Returns:
        uint8 [ceil(N / 16), ceil(K / 32) * 544].

    Raises:
        ValueError: an argument has another type or shape, or a quant is -128.
    """
    _check(quants, np.int8, {"scales": scales})
    if quants.size and quants.min() < -127:
        raise ValueError("quants holds -128, expected -127 to 127")
    parts = Parts(quants.view(np.uint8) ^ np.uint8(128), scales)
    return formats.pack_parts(FORMATS["q8_0"], parts)


def unpack_int8(packed: Bytes, n: int, k: int) -> tuple[npt.NDArray[np.int8], Halves]:
    """Undoes `pack_int8`.

    Args:
        packed: uint8 [ceil(n / 16), ceil(k / 32) * 544].
        n: outputs.
        k: inputs.

    Returns:
        quants int8 [n, k], scales float16 [n, ceil(k / 32)].

    Raises:
        ValueError: `packed` has another type or shape.
    """
    parts = formats.unpack_parts(FORMATS["q8_0"], packed, n, k)
    assert parts.scales is not None
    return (parts.quants ^ np.uint8(128)).view(np.int8), parts.scales


def pack_ternary(levels: npt.NDArray[np.int8], scales: Halves) -> Bytes:
    """Packs w = scale * level in two planes, positive and negative; `src/kernels/ternary.h`.

    Args:
        levels: int8 [N, K], -1, 0 or 1.
        scales: float16 [N, ceil(K / 32)].

    Returns:
        uint8 [ceil(N / 16), ceil(K / 32) * 160].

    Raises:
        ValueError: an argument has another type or shape, or a level is another number.
    """
    _check(levels, np.int8, {"scales": scales})
    if np.abs(levels).max() > 1:
        raise ValueError("levels holds other values than -1, 0 and 1")
    planes = (levels > 0).astype(np.uint32) | (levels < 0).astype(np.uint32) << 1
    vectors = pad(planes, GROUP).reshape(-(-len(levels) // TILE) * TILE, -1, _LEVELS)
    words = np.bitwise_or.reduce(vectors << _LEVEL_SHIFTS, axis=-1)
    groups = scales.shape[1]
    tiles = np.empty((len(words) // TILE, groups), _TERNARY_GROUP)
    tiles["words"] = words.reshape(len(tiles), TILE, groups, 2).transpose(0, 2, 3, 1)
    tiles["scales"] = pad(scales, 1).reshape(len(tiles), TILE, groups).transpose(0, 2, 1)
    return tiles.view(np.uint8)


def unpack_ternary(packed: Bytes, n: int, k: int) -> tuple[npt.NDArray[np.int8], Halves]:
    """Undoes `pack_ternary`.

    Args:
        packed: uint8 [ceil(n / 16), ceil(k / 32) * 160].
        n: outputs.
        k: inputs.

    Returns:
        levels int8 [n, k], scales float16 [n, ceil(k / 32)].

    Raises:
        ValueError: `packed` has another type or shape.
    """
    tiles = -(-n // TILE)
    check_packed(packed, [tiles, -(-k // GROUP) * _TERNARY_GROUP.itemsize])
    groups = np.ascontiguousarray(packed).view(_TERNARY_GROUP)
    words = groups["words"].transpose(0, 3, 1, 2).reshape(tiles * TILE, -1, 1)
    levels = np.array([0, 1, -1, -1], np.int8)[words >> _LEVEL_SHIFTS & 3]
    scales = groups["scales"].transpose(0, 2, 1).reshape(tiles * TILE, -1)
    return levels.reshape(tiles * TILE, -1)[:n, :k], scales[:n]


def dequantize(
    packed: Bytes, bits: int, n: int, k: int, scale_bits: int = 16
) -> npt.NDArray[np.float32]:
    """The weight that `packed` stands for, with the bits that the kernels compute with.

    Args:
        packed: what `pack_int4`, `pack_int4_in_units` or `pack_int8` returned.
        bits: 4 or 8.
        n: outputs.
        k: inputs.
        scale_bits: 16; 8 for `pack_int4_in_units`.

    Returns:
        float32 [n, k].

    Raises:
        ValueError: `packed` has another type or shape, or `bits` or `scale_bits` another value.
    """
    return formats.dequantize(int_format(bits, scale_bits), packed, n, k)


def _check(
    quants: npt.NDArray[Any],
    dtype: type,
    factors: dict[str, Any],
    factor_dtype: type = np.float16,
) -> None:
    if quants.dtype != dtype or quants.ndim != 2 or 0 in quants.shape:
        raise ValueError(
            f"quants is {quants.dtype} {list(quants.shape)}, expected {np.dtype(dtype)} [N, K]"
        )
    expected = [quants.shape[0], -(-quants.shape[1] // GROUP)]
    for name, factor in factors.items():
        if factor.dtype != factor_dtype or list(factor.shape) != expected:
            raise ValueError(
                f"{name} is {factor.dtype} {list(factor.shape)}, "
                f"expected {np.dtype(factor_dtype)} {expected}"
            )


def check_in_units(quants: Bytes, scales: Bytes, minima: Bytes, units: Halves) -> None:
    """Raises ValueError where an argument of `pack_int4_in_units` does not fit."""
    check_int4(quants, {"scales": scales, "minima": minima}, np.uint8)
    if units.dtype != np.float16 or units.shape != (len(quants),):
        raise ValueError(
            f"units is {units.dtype} {list(units.shape)}, expected float16 [{len(quants)}]"
        )


def check_int4(quants: Bytes, factors: dict[str, Any], factor_dtype: type = np.float16) -> None:
    """Raises ValueError where quants or factors do not fit."""
    _check(quants, np.uint8, factors, factor_dtype)
    if quants.size and quants.max() > 15:
        raise ValueError(f"quants holds {quants.max()}, expected 0 to 15")


def check_packed(packed: npt.NDArray[Any], expected: list[int]) -> None:
    """Raises ValueError where `packed` has another type or shape."""
    if packed.dtype != np.uint8 or list(packed.shape) != expected:
        raise ValueError(
            f"packed is {packed.dtype} {list(packed.shape)}, expected uint8 {expected}"
        )


def pad(x: npt.NDArray[Any], columns: int, rows: int | None = None) -> npt.NDArray[Any]:
    """With zeros to `rows`, by default whole tiles, and to multiples of `columns`."""
    n = rows or -(-x.shape[0] // TILE) * TILE
    k = -(-x.shape[1] // columns) * columns
    padded = np.zeros((n, k), x.dtype)
    padded[: x.shape[0], : x.shape[1]] = x
    return padded
