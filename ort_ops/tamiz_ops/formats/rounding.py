r"""Rounds float weights to a format: to the nearest quant of each group's range.

    symmetric:  scale = peak / (least value),       quant = nearest((w / scale))
    minimum:    scale = (max − low) / (levels − 1), low = min(w) (in super-blocks at most 0)

with *peak* the weight of largest magnitude of a group, so its quant is the outermost one. A
super-block rounds its scales and minima to integers that count d and dmin; quants follow from the
rounded scales.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats.declared import SUPER_BLOCK, Format, Scales
from tamiz_ops.formats.packing import pack_parts
from tamiz_ops.formats.parts import SIGN, Array, Floats, Parts, pad_columns

#: Smallest and largest integer that a scale of a super-block holds, without what it is stored with.
_INTEGERS = {
    Scales.FOUR: (0, 15),
    Scales.SIX: (0, 63),
    Scales.SIX_SIGNED: (-32, 31),
    Scales.SIGNED_BYTE: (-128, 127),
}
#: Weights that are rounded at a time.
_CHUNK = 1 << 20


def quantisable(format: Format) -> bool:
    """Whether `quantise` can make a format."""
    return format.scales is Scales.HALF or format.scales in _INTEGERS


def quantise(format: Format, weight: Floats) -> npt.NDArray[np.uint8]:
    """Packs float weights in a format, some rows at a time.

    Args:
        format: The format; see `quantisable`.
        weight: float32 ``[N, K]``; may be strided.

    Returns:
        uint8 ``[ceil(N / 16), tile bytes]``, as `pack_parts` has it.

    Raises:
        ValueError: The format has no such rounding, a weight is not finite, or a scale lies outside
            of fp16's range.
    """
    n, k = weight.shape
    packed = np.empty(format.packed_shape(n, k), np.uint8)
    tiles = max(1, _CHUNK // (16 * k))
    for tile in range(0, len(packed), tiles):
        rows = np.asarray(weight[16 * tile : 16 * (tile + tiles)], np.float32)
        packed[tile : tile + tiles] = pack_parts(format, round_parts(format, rows))
    return packed


def round_parts(format: Format, weight: Floats) -> Parts:
    """The quants, scales and minima of float weights; see `quantise`."""
    if not quantisable(format):
        raise ValueError(f"format {format.name}: no rounding is known, expected q4_k or the like")
    if not np.isfinite(weight).all():
        raise ValueError("a weight is not finite")
    n, k = weight.shape
    padded = pad_columns(np.ascontiguousarray(weight, np.float32), format.block)
    groups = padded.reshape(n, -1, format.group)
    scales, minima = (_range if format.minimum else _peak)(format, groups)
    stored = (_halves if format.block != SUPER_BLOCK else _integers)(format, scales, minima)
    parts = Parts(np.zeros((n, 0), np.uint8), *stored)
    factors, offsets = parts.factors(format)
    return Parts(_quants(format, groups, factors, offsets).reshape(n, -1)[:, :k], *stored)


def _peak(format: Format, groups: Floats) -> tuple[Floats, None]:
    """Scale of each group without a minimum."""
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    peak = np.where(high > -low, high, low)
    least = format.codebook[0] if format.codebook else -format.offset
    return peak / np.float32(least), None


def _range(format: Format, groups: Floats) -> tuple[Floats, Floats]:
    """Scale and minimum of each group."""
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    if format.block == SUPER_BLOCK:  # its minima are not positive
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    return (high - low) / np.float32((1 << format.bits) - 1), low


_Stored = tuple[Array, "Array | None", "Array | None", "Array | None"]


def _halves(format: Format, scales: Floats, minima: Floats | None) -> _Stored:
    """As fp16."""
    return _fp16(scales), None if minima is None else _fp16(minima), None, None


def _integers(format: Format, scales: Floats, minima: Floats | None) -> _Stored:
    """As integers that count an fp16 factor of their super-block."""
    least, most = _INTEGERS[format.scales]
    s, d = _counted(scales, SUPER_BLOCK // format.group, least, most)
    if minima is not None:
        m, dmin = _counted(-minima, SUPER_BLOCK // format.group, least, most)
        return s.astype(np.uint8), m.astype(np.uint8), d, dmin
    if format.scales is Scales.SIX_SIGNED:
        return (s + SIGN).astype(np.uint8), None, d, None
    return s.astype(np.int8), None, d, None


def _counted(values: Floats, count: int, least: int, most: int) -> tuple[Floats, Array]:
    """Integers and factors of runs of `count` values."""
    runs = values.reshape(len(values), -1, count)
    low, high = runs.min(axis=-1), runs.max(axis=-1)
    if least:  # the largest one takes the outermost integer, which is negative
        factor = np.where(high > -low, high, low) / np.float32(least)
    else:
        factor = high / np.float32(most)
    d = _fp16(factor)
    s = np.rint(runs * _inverse(d)[..., None])
    return np.clip(s, least, most).reshape(values.shape), d


def _quants(
    format: Format, groups: Floats, scales: Floats, minima: Floats | None
) -> npt.NDArray[np.uint8]:
    """The nearest quants of groups ``[N, groups, group]``."""
    shifted = groups if minima is None else groups - minima[..., None]
    values = shifted * _inverse(scales)[..., None]
    if format.codebook is not None:
        book = np.array(format.codebook, np.float32)
        return np.searchsorted((book[1:] + book[:-1]) / 2, values).astype(np.uint8)
    shifted = np.rint(values) + np.float32(format.offset)
    quants: npt.NDArray[np.uint8] = np.clip(shifted, 0, (1 << format.bits) - 1).astype(np.uint8)
    return quants


def _fp16(values: Floats) -> npt.NDArray[np.float16]:
    largest = float(np.finfo(np.float16).max)
    if np.abs(values).max(initial=0.0) > largest:
        raise ValueError(f"a group needs a scale or minimum above {largest:.0f}, fp16's largest")
    return values.astype(np.float16)


def _inverse(scales: Array) -> Floats:
    """1 / scale, 0 where the scale is 0."""
    s = scales.astype(np.float32)
    inverse: Floats = np.divide(np.float32(1), s, out=np.zeros_like(s), where=s != 0)
    return inverse
