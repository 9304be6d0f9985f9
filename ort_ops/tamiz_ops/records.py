"""Weights of 4 bits packed by output, so that a product can leave single outputs unread.

A record is one output. It lies as a tile of `tamiz_ops.pack` does, with groups of inputs in the
place of outputs; `src/kernels/chosen/chosen.h` shows every byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats import GROUP
from tamiz_ops.pack import (
    Bytes,
    Halves,
    check_in_units,
    check_int4,
    check_packed,
    pack_int4,
    pack_int4_in_units,
    unpack_int4,
    unpack_int4_in_units,
)

_CHUNK = 16  # groups


def pack_records(quants: Bytes, scales: Halves, minima: Halves) -> Bytes:
    """Packs w = scale * q + minimum by output, for `ChosenMatMul`.

    Args:
        quants: uint8 [N, K], 0 to 15.
        scales: float16 [N, ceil(K / 32)].
        minima: float16 [N, ceil(K / 32)].

    Returns:
        uint8 [N, ceil(K / 512) * 320].

    Raises:
        ValueError: an argument has another type or shape, or a quant is over 15.
    """
    check_int4(quants, {"scales": scales, "minima": minima})
    return pack_int4(_lanes(quants, GROUP), _lanes(scales), _lanes(minima))


def unpack_records(packed: Bytes, n: int, k: int) -> tuple[Bytes, Halves, Halves]:
    """Undoes `pack_records`.

    Args:
        packed: uint8 [n, ceil(k / 512) * 320].
        n: outputs.
        k: inputs.

    Returns:
        quants uint8 [n, k], scales float16 [n, ceil(k / 32)], minima likewise.

    Raises:
        ValueError: `packed` has another type or shape.
    """
    chunks = -(-k // (GROUP * _CHUNK))
    check_packed(packed, [n, chunks * 320])
    quants, scales, minima = unpack_int4(packed, n * _CHUNK, chunks * GROUP)
    groups = -(-k // GROUP)
    return _row(quants, n, k, GROUP), _row(scales, n, groups), _row(minima, n, groups)


def pack_records_in_units(quants: Bytes, scales: Bytes, minima: Bytes, units: Halves) -> Bytes:
    """Packs w = units / 256 * (scale * q - 8 * minimum) by output, for `ChosenMatMul`.

    Args:
        quants: uint8 [N, K], 0 to 15.
        scales: uint8 [N, ceil(K / 32)].
        minima: uint8 [N, ceil(K / 32)].
        units: float16 [N].

    Returns:
        uint8 [N, ceil(K / 512) * 288 + 32].

    Raises:
        ValueError: an argument has another type or shape, or a quant is over 15.
    """
    check_in_units(quants, scales, minima, units)
    in_lanes = _lanes(quants, GROUP), _lanes(scales), _lanes(minima)
    return pack_int4_in_units(*in_lanes, np.repeat(units, _CHUNK))


def unpack_records_in_units(packed: Bytes, n: int, k: int) -> tuple[Bytes, Bytes, Bytes, Halves]:
    """Undoes `pack_records_in_units`.

    Args:
        packed: uint8 [n, ceil(k / 512) * 288 + 32].
        n: outputs.
        k: inputs.

    Returns:
        quants uint8 [n, k], scales uint8 [n, ceil(k / 32)], minima likewise, units float16 [n].

    Raises:
        ValueError: `packed` has another type or shape.
    """
    chunks = -(-k // (GROUP * _CHUNK))
    check_packed(packed, [n, chunks * 288 + 32])
    parts = unpack_int4_in_units(packed, n * _CHUNK, chunks * GROUP)
    groups = -(-k // GROUP)
    rows = _row(parts[0], n, k, GROUP), _row(parts[1], n, groups), _row(parts[2], n, groups)
    return (*rows, parts[3][::_CHUNK])


def _lanes(values: npt.NDArray[Any], width: int = 1) -> npt.NDArray[Any]:
    """Rows [N, groups * width], padded with zeros, as [N * 16 lanes, chunks * width]."""
    n, count = values.shape
    padded = np.pad(values, ((0, 0), (0, -count % (_CHUNK * width))))
    chunks = padded.reshape(n, -1, _CHUNK, width)
    return np.ascontiguousarray(chunks.swapaxes(1, 2)).reshape(n * _CHUNK, -1)


def _row(lanes: npt.NDArray[Any], n: int, count: int, width: int = 1) -> npt.NDArray[Any]:
    """Undoes `_lanes`, to `count` columns."""
    chunks = lanes.reshape(n, _CHUNK, -1, width).swapaxes(1, 2)
    return np.ascontiguousarray(chunks.reshape(n, -1)[:, :count])
