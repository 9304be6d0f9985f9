"""Weights of 4 bits packed by input channel, so that a product can leave single inputs unread.

`src/kernels/channels.h` shows every byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats import GROUP
from tamiz_ops.pack import Bytes, Halves, check_in_units, check_int4, check_packed, pad

_PANEL = 128  # outputs of a panel
_HALF = 64  # outputs of the last one, perhaps
_STREAMS = 8  # that the records of a panel are dealt to


def pack_channels(quants: Bytes, scales: Halves, minima: Halves) -> Bytes:
    """Packs w = scale * q + minimum by input channel, for `ChannelMatMul`.

    Args:
        quants: uint8 [N, K], 0 to 15.
        scales: float16 [N, ceil(K / 32)].
        minima: float16 [N, ceil(K / 32)].

    Returns:
        uint8 [ceil(N / 64), 4, ceil(K / 32) * 320].

    Raises:
        ValueError: an argument has another type or shape, or a quant is over 15.
    """
    check_int4(quants, {"scales": scales, "minima": minima})
    factors = _outputs_last([scales, minima])
    panels = []
    for rows, records in _record_panels(quants):
        factor_records = np.ascontiguousarray(factors[:, :, rows]).view(np.uint8)
        factor_records = factor_records.reshape(len(factors), _STREAMS, 1, -1)
        dealt = records.reshape(len(records), -1, _STREAMS, records.shape[2]).transpose(2, 0, 1, 3)
        panels.append(np.concatenate([dealt, factor_records.transpose(1, 0, 2, 3)], axis=2))
    return _stored(panels, len(quants))


def unpack_channels(packed: Bytes, n: int, k: int) -> tuple[Bytes, Halves, Halves]:
    """Undoes `pack_channels`.

    Args:
        packed: uint8 [ceil(n / 64), 4, ceil(k / 32) * 320].
        n: outputs.
        k: inputs.

    Returns:
        quants uint8 [n, k], scales float16 [n, ceil(k / 32)], minima likewise.

    Raises:
        ValueError: `packed` has another type or shape.
    """
    groups = -(-k // GROUP)
    check_packed(packed, [-(-n // _HALF), 4, groups * 320])
    quants, factors = [], []
    for size, panel in _panels(packed):
        streams = panel.reshape(_STREAMS, groups, -1, size // 2)
        quants.append(_quants(streams[:, :, :-1]))
        last = np.ascontiguousarray(streams[:, :, -1].transpose(1, 0, 2)).view(np.float16)
        factors.append(last.reshape(groups, 2, size))
    scales, minima = np.concatenate(factors, axis=2).transpose(1, 2, 0)
    return np.concatenate(quants)[:n, :k], scales[:n], minima[:n]


def pack_channels_in_units(quants: Bytes, scales: Bytes, minima: Bytes, units: Halves) -> Bytes:
    """Packs w = units / 256 * (scale * q - 8 * minimum) by input channel, for `ChannelMatMul`.

    Args:
        quants: uint8 [N, K], 0 to 15.
        scales: uint8 [N, ceil(K / 32)].
        minima: uint8 [N, ceil(K / 32)].
        units: float16 [N].

    Returns:
        uint8 [ceil(N / 64), 4, ceil(K / 32) * 288 + 32].

    Raises:
        ValueError: an argument has another type or shape, or a quant is over 15.
    """
    check_in_units(quants, scales, minima, units)
    factors = _outputs_last([scales, minima])
    padded_units = pad(units[:, None], 1, factors.shape[2])
    panels = []
    for rows, records in _record_panels(quants):
        dealt = records.reshape(len(records), -1, _STREAMS, records.shape[2]).transpose(2, 0, 1, 3)
        panels += [dealt, factors[:, :, rows], padded_units[rows].view(np.uint8)]
    return _stored(panels, len(quants))


def unpack_channels_in_units(packed: Bytes, n: int, k: int) -> tuple[Bytes, Bytes, Bytes, Halves]:
    """Undoes `pack_channels_in_units`.

    Args:
        packed: uint8 [ceil(n / 64), 4, ceil(k / 32) * 288 + 32].
        n: outputs.
        k: inputs.

    Returns:
        quants uint8 [n, k], scales uint8 [n, ceil(k / 32)], minima likewise, units float16 [n].

    Raises:
        ValueError: `packed` has another type or shape.
    """
    groups = -(-k // GROUP)
    check_packed(packed, [-(-n // _HALF), 4, groups * 288 + 32])
    quants, factors, units = [], [], []
    for size, panel in _panels(packed):
        ends = np.cumsum([groups * GROUP * size // 2, groups * 2 * size])
        records, of_groups, of_outputs = np.split(panel, ends)
        quants.append(_quants(records.reshape(_STREAMS, groups, -1, size // 2)))
        factors.append(of_groups.reshape(groups, 2, size))
        units.append(np.ascontiguousarray(of_outputs).view(np.float16))
    scales, minima = np.concatenate(factors, axis=2).transpose(1, 2, 0)
    return np.concatenate(quants)[:n, :k], scales[:n], minima[:n], np.concatenate(units)[:n]


def _outputs_last(factors: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Scales and minima [N, groups] as [groups, 2, N padded to 64]."""
    outputs = -(-len(factors[0]) // _HALF) * _HALF
    return np.stack([pad(factor, 1, outputs).T for factor in factors], axis=1)


def _record_panels(quants: Bytes) -> list[tuple[slice, Bytes]]:
    """Of every panel its outputs and its records [groups, 32, bytes]."""
    outputs = -(-len(quants) // _HALF) * _HALF
    padded = pad(quants, GROUP, outputs)
    panels = []
    for first in range(0, outputs, _PANEL):
        size = min(_PANEL, outputs - first)
        rows = slice(first, first + size)
        # output = 8 d j + 4 d * (high nibble) + 4 b + c, d = size / 32
        both = padded[rows].reshape(4, 2, size // 32, 4, -1, GROUP)
        records = (both[:, 0] | both[:, 1] << 4).transpose(3, 4, 1, 0, 2)
        panels.append((rows, records.reshape(len(records), GROUP, -1)))
    return panels


def _quants(streams: Bytes) -> Bytes:
    """Of records [streams, groups, 4, bytes] the quants [outputs, inputs]."""
    groups, size = streams.shape[1], 2 * streams.shape[3]
    both = streams.transpose(1, 2, 0, 3).reshape(groups, GROUP, size // 32, 4, 4)
    both = both.transpose(3, 2, 4, 0, 1)  # j, b, c, group, input
    return np.stack([both & 15, both >> 4], axis=1).reshape(size, -1)


def _panels(packed: Bytes) -> list[tuple[int, Bytes]]:
    """Of every panel how many outputs it has and its bytes."""
    panels = [packed[i : i + _PANEL // _HALF] for i in range(0, len(packed), _PANEL // _HALF)]
    return [(len(panel) * _HALF, np.ascontiguousarray(panel).reshape(-1)) for panel in panels]


def _stored(panels: Sequence[npt.NDArray[Any]], outputs: int) -> Bytes:
    """The parts of all panels in order, uint8 [outputs padded / 64, 4, bytes]."""
    whole = np.concatenate([np.ascontiguousarray(part).reshape(-1) for part in panels])
    return whole.reshape(-(-outputs // _HALF), 4, -1)
