"""Weights in the layout of the kernels, and back.

A tile is 16 outputs, a group 32 inputs. In a group come first the quants, then 16 fp16 scales and,
for 4 bits, 16 fp16 minima; or both are bytes that count a unit of their output, and the units
follow the groups. `src/kernels/packing.h` shows every byte. N outputs and K inputs are padded with
zeros.

Weights of 4 bits can also be packed by input channel: `tamiz_ops.channels`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Halves = npt.NDArray[np.float16]

GROUP = 32
TILE = 16
_WORD = 4  # inputs of one output that lie side by side
_UNIT_STEP = np.float32(2**-8)  # times a stored unit
_MINIMUM_STEP = 8  # units that a minimum of 8 bits counts
_LEVELS = 16  # inputs whose ternary levels share a word
_LEVEL = np.arange(_LEVELS, dtype=np.uint32)
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
    return _join(_nibble_pairs(quants), [scales, minima])


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
    both, (scales, minima) = _split(packed, 4, n, k)
    return _nibbles(both)[:n, :k], scales, minima


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
    groups = _join(_nibble_pairs(quants), [scales, minima])
    return np.hstack([groups, pad(units[:, None], 1).reshape(-1, TILE).view(np.uint8)])


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
    groups = -(-k // GROUP) * _group(4, np.uint8).itemsize
    check_packed(packed, [-(-n // TILE), groups + 2 * TILE])
    both, (scales, minima) = _split(packed[:, :groups], 4, n, k, np.uint8)
    units = np.ascontiguousarray(packed[:, groups:]).view(np.float16).reshape(-1)
    return _nibbles(both)[:n, :k], scales, minima, units[:n]


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
    return _join(pad(quants, GROUP).view(np.uint8) ^ np.uint8(128), [scales])


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
    offset, (scales,) = _split(packed, 8, n, k)
    quants = (offset ^ 128).view(np.int8).reshape(len(offset), -1)
    return quants[:n, :k], scales


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
    return _join(words.view(np.uint8), [scales])


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
    data, (scales,) = _split(packed, 2, n, k)
    planes = np.ascontiguousarray(data).view("<u4").reshape(len(data), -1, 1) >> _LEVEL_SHIFTS & 3
    levels = np.array([0, 1, -1, -1], np.int8)[planes].reshape(len(data), -1)
    return levels[:n, :k], scales


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
    if scale_bits not in ((8, 16) if bits == 4 else (16,)):
        raise ValueError(f"scale_bits is {scale_bits}, expected 16" + (bits == 4) * " or 8")
    weight: npt.NDArray[np.float32]
    if scale_bits == 8:
        quants, byte_scales, byte_minima, units = unpack_int4_in_units(packed, n, k)
        weight = quants.astype(np.float32)
        weight *= _spread(byte_scales, k)
        weight -= _MINIMUM_STEP * _spread(byte_minima, k)
        weight *= units[:, None].astype(np.float32) * _UNIT_STEP
    elif bits == 4:
        quants, scales, minima = unpack_int4(packed, n, k)
        weight = quants.astype(np.float32)
        weight *= _spread(scales, k)
        weight += _spread(minima, k)
    elif bits == 8:
        signed, scales = unpack_int8(packed, n, k)
        weight = signed.astype(np.float32)
        weight *= _spread(scales, k)
    else:
        raise ValueError(f"bits is {bits}, expected 4 or 8")
    return weight


def _spread(factors: Halves | Bytes, k: int) -> npt.NDArray[np.float32]:
    """A factor of every group as one of every input."""
    return np.repeat(factors.astype(np.float32), GROUP, axis=1)[:, :k]


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


def _nibble_pairs(quants: Bytes) -> Bytes:
    """Of every 8 inputs the first four in the low nibbles, the others in the high ones."""
    padded = pad(quants, GROUP)
    pairs = padded.reshape(len(padded), -1, 2, _WORD)
    both: Bytes = pairs[:, :, 0] | pairs[:, :, 1] << 4
    return both


def _nibbles(both: Bytes) -> Bytes:
    """Undoes `_nibble_pairs`; with the padding."""
    return np.stack([both & 15, both >> 4], axis=2).reshape(len(both), -1)


def _group(bits: int, factor: npt.DTypeLike = np.float16) -> np.dtype[Any]:
    """One group of a tile: vectors of a word for every output, then the factors."""
    factors = 2 if bits == 4 else 1
    return np.dtype([("words", "<u4", (bits, TILE)), ("factors", factor, (factors, TILE))])


def _join(quants: Bytes, factors: Sequence[npt.NDArray[Any]]) -> Bytes:
    """`quants`: bytes of whole tiles of outputs, in the order of the inputs."""
    groups = factors[0].shape[1]
    words = quants.view("<u4").reshape(len(quants) // TILE, TILE, groups, -1)
    tiles = np.empty((len(words), groups), _group(words.shape[3], factors[0].dtype))
    tiles["words"] = words.transpose(0, 2, 3, 1)
    for i, factor in enumerate(factors):
        padded = pad(factor, 1).reshape(len(tiles), TILE, groups)
        tiles["factors"][:, :, i] = padded.transpose(0, 2, 1)
    return tiles.view(np.uint8)


def _split(
    packed: Bytes, bits: int, n: int, k: int, factor: npt.DTypeLike = np.float16
) -> tuple[Bytes, list[npt.NDArray[Any]]]:
    """Undoes `_join`: bytes [tiles * 16, words, 4] and factors [n, groups]."""
    group = _group(bits, factor)
    tiles, groups = -(-n // TILE), -(-k // GROUP)
    check_packed(packed, [tiles, groups * group.itemsize])
    fields = np.ascontiguousarray(packed).view(group)
    words = np.ascontiguousarray(fields["words"].transpose(0, 3, 1, 2))
    factors = fields["factors"].transpose(2, 0, 3, 1).reshape(-1, tiles * TILE, groups)
    return words.view(np.uint8).reshape(tiles * TILE, -1, _WORD), list(factors[:, :n])
