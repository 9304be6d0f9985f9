"""Tensors of type I2_S, the ternary weights of Microsoft's bitnet.cpp, as TQ2_0.

    w = (code − 1) · scale,    code in {0, 1, 2},    one scale a tensor

128 values are 32 bytes: byte i has those of i, i + 32, i + 64 and i + 96, the first one in its
highest two bits. A float32, the scale, follows all of them, and 28 bytes of padding. TQ2_0 has the
same codes with the first one in the lowest bits, and a float16 for every 256 values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]

#: Its number in the files of Microsoft's fork; llama.cpp has no type of this number.
I2_S = 36
_BLOCK, _PADDED_SCALE = 256, 32
#: Says what is wrong with a tensor: what was found, and what was expected.
Fail = Callable[[str, Any, str], NoReturn]


def i2_s_bytes(rows: int, columns: int) -> int:
    """Bytes of a tensor."""
    return rows * columns // 4 + _PADDED_SCALE


def tq2_0_of_i2_s(data: Bytes, rows: int, columns: int, fail: Fail) -> Bytes:
    """The same values as TQ2_0.

    Args:
        data: The bytes of the tensor.
        rows: Its outputs.
        columns: Its inputs, a multiple of 256.
        fail: Raises the error of this tensor: of a part of it, what was found and expected.

    Returns:
        uint8 ``[rows, row bytes]``.

    Raises:
        TamizError: A code stands for nothing, or float16 does not hold the scale.
    """
    packed = data[: rows * columns // 4].reshape(-1, _BLOCK // 4)
    if (packed & packed >> 1 & 0x55).any():
        fail("codes", "a code of 3", "0, 1 or 2")
    scale = data[rows * columns // 4 :][:4].view("<f4")[0]
    with np.errstate(over="ignore"):
        half = scale.astype("<f2")
    if not np.isfinite(half) or half.astype(np.float32) != scale:
        fail("scale", scale, "a number that float16 holds; try a file with TQ2_0")
    blocks = np.empty((len(packed), _BLOCK // 4 + 2), np.uint8)
    blocks[:, :-2] = packed << 6 | (packed & 12) << 2 | packed >> 2 & 12 | packed >> 6
    blocks[:, -2:] = np.frombuffer(half.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)
