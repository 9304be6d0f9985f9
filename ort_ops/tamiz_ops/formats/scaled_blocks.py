"""The blocks of GGUF types whose blocks are shorter than those of the format that holds them.

NVFP4   64 inputs: 4 scales of 8 bits (e4m3), 64 numbers of 4 bits (e2m1)
Q1_0    128 inputs: an fp16 scale, 128 signs
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats.declared import FORMATS
from tamiz_ops.formats.parts import Parts, small_floats

Bytes = npt.NDArray[np.uint8]

#: e4m3 that stands for no number; ggml reads it as 0.
_NO_NUMBER = 0x7F


def _read_nvfp4(blocks: Bytes) -> Parts:
    nibbles = blocks[:, 4:].reshape(-1, 4, 1, 8) >> np.array([[0], [4]], np.uint8) & np.uint8(15)
    scales = blocks[:, :4] & np.uint8(_NO_NUMBER)  # without the bit that is no sign
    scales = np.where(blocks[:, :4] == _NO_NUMBER, np.uint8(0), scales)
    return Parts(nibbles.reshape(len(blocks), -1), scales)


def _read_narrow_nvfp4(blocks: Bytes) -> Parts:
    """Elements of 8 bits with scales of float32, of rows that are no whole super-blocks."""
    parts, doubled = _read_nvfp4(blocks), FORMATS["nvfp4"].codebook
    assert parts.scales is not None
    elements = np.array(doubled, np.int16)[parts.quants] + np.int16(128)
    return Parts(elements.astype(np.uint8), small_floats(parts.scales) * np.float32(0.5))


def _read_q1_0(blocks: Bytes) -> Parts:
    """An element is the scale where its bit is set, else less than 0: 1 or -1, of 2 bits less 2."""
    signs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little")
    return Parts(2 * signs + np.uint8(1), np.ascontiguousarray(blocks[:, :2]).view(np.float16))


#: By the format: inputs and bytes of a block, and what takes blocks apart.
SCALED_BLOCKS: Mapping[str, tuple[int, int, Callable[[Bytes], Parts]]] = {
    "nvfp4": (64, 36, _read_nvfp4),
    "affine8_16": (64, 36, _read_narrow_nvfp4),
    "affine2_128h": (128, 18, _read_q1_0),
}
#: Formats whose scales are float32, so that they hold a factor of an output, too.
WITH_FACTORS = ("nvfp4", "affine8_16")
