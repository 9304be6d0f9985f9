"""The blocks of ggml's IQ1, IQ2 and IQ3, taken apart: 256 inputs to quants, scales and d.

The layouts are those of ggml's `ggml-common.h`. Tiles have a sign for every input, where blocks of
IQ2_XXS, IQ2_XS and IQ3_XXS have seven for eight inputs: the number of minus signs is even.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats.parts import Parts

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_SEVENS = np.array([0, 7, 14, 21], np.uint32)
_THREES = np.array([0, 3, 6, 9], np.uint32)


def _words(fields: Bytes, kind: str) -> Array:
    return np.ascontiguousarray(fields).view(kind).astype(np.uint32)


def _half(fields: Bytes) -> Array:
    return np.ascontiguousarray(fields).view("<f2")


def _nibbles(fields: Bytes) -> Bytes:
    """The low and the high nibble of each byte, side by side."""
    return np.stack([fields & 15, fields >> 4], axis=2).reshape(len(fields), -1)


def _eight_signs(seven: Array) -> Array:
    """Seven signs with the eighth: the number of set bits is even."""
    parity = seven ^ seven >> 4
    parity ^= parity >> 2
    parity ^= parity >> 1
    eight: Array = seven | (parity & 1) << 7
    return eight


def _signs_of_four(words: Array) -> Array:
    """Signs of 8 inputs each, of words ``[n, 8]`` with four times seven: ``[n, 32]``."""
    signs = _eight_signs(words[..., None] >> _SEVENS & 127)
    return signs.reshape(len(words), -1)


def _by_fours(signs: Array) -> Array:
    """Signs of 8 inputs as those of 4, ``[n, 2 × as many]``."""
    return np.stack([signs & 15, signs >> 4], axis=2).reshape(len(signs), -1)


def _read_iq1_s(blocks: Bytes) -> Parts:
    words = _words(blocks[:, 34:50], "<u2")
    above = (words[..., None] >> _THREES & 7) | (words[..., None] >> 15) << 3
    quants = blocks[:, 2:34] | above.reshape(len(blocks), -1) << 8
    return Parts(quants, (words >> 12 & 7).astype(np.uint8), d=_half(blocks[:, :2]))


def _read_iq1_m(blocks: Bytes) -> Parts:
    quants = blocks[:, :32] | _nibbles(blocks[:, 32:48]).astype(np.uint32) << 8
    words = _words(blocks[:, 48:56], "<u2")
    scales = (words[..., None] >> _THREES & 7).astype(np.uint8).reshape(len(blocks), -1)
    places = np.arange(0, 16, 4, dtype=np.uint32)
    d = np.bitwise_or.reduce(words >> 12 << places, axis=1).astype("<u2")
    return Parts(quants, scales, d=d.view("<f2")[:, None])


def _read_iq2_xxs(blocks: Bytes) -> Parts:
    words = _words(blocks[:, 2:66], "<u4").reshape(len(blocks), 8, 2)
    numbers = blocks[:, 2:66].reshape(len(blocks), 8, 8)[..., :4].reshape(len(blocks), -1)
    quants = numbers | _signs_of_four(words[..., 1]) << 8
    return Parts(quants, (words[..., 1] >> 28).astype(np.uint8), d=_half(blocks[:, :2]))


def _read_iq2_xs(blocks: Bytes) -> Parts:
    words = _words(blocks[:, 2:66], "<u2")
    quants = words & 511 | _eight_signs(words >> 9) << 9
    return Parts(quants, _nibbles(blocks[:, 66:74]), d=_half(blocks[:, :2]))


def _read_iq2_s(blocks: Bytes) -> Parts:
    high = blocks[:, 66:74, None].astype(np.uint32) >> np.arange(0, 8, 2, dtype=np.uint32) & 3
    signs = blocks[:, 34:66].astype(np.uint32)
    quants = blocks[:, 2:34] | high.reshape(len(blocks), -1) << 8 | signs << 10
    return Parts(quants, _nibbles(blocks[:, 74:82]), d=_half(blocks[:, :2]))


def _read_iq3_xxs(blocks: Bytes) -> Parts:
    words = _words(blocks[:, 66:98], "<u4")
    quants = blocks[:, 2:66] | _by_fours(_signs_of_four(words)) << 8
    return Parts(quants, (words >> 28).astype(np.uint8), d=_half(blocks[:, :2]))


def _read_iq3_s(blocks: Bytes) -> Parts:
    high = blocks[:, 66:74, None].astype(np.uint32) >> np.arange(8, dtype=np.uint32) & 1
    signs = _by_fours(blocks[:, 74:106].astype(np.uint32))
    quants = blocks[:, 2:66] | high.reshape(len(blocks), -1) << 8 | signs << 9
    return Parts(quants, _nibbles(blocks[:, 106:110]), d=_half(blocks[:, :2]))


#: Bytes of a block and what takes blocks apart, by format.
GRID_BLOCKS: dict[str, tuple[int, Callable[[Bytes], Parts]]] = {
    "iq1_s": (50, _read_iq1_s),
    "iq1_m": (56, _read_iq1_m),
    "iq2_xxs": (66, _read_iq2_xxs),
    "iq2_xs": (74, _read_iq2_xs),
    "iq2_s": (82, _read_iq2_s),
    "iq3_xxs": (98, _read_iq3_xxs),
    "iq3_s": (110, _read_iq3_s),
}
