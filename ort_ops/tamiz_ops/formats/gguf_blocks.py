"""The blocks of GGUF tensors, taken apart: bytes [N, row bytes] to `Parts`.

The layouts are those of ggml's `ggml-common.h`; each function names the fields of one block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats.declared import SUPER_BLOCK, Format
from tamiz_ops.formats.grid_blocks import GRID_BLOCKS
from tamiz_ops.formats.parts import Floats, Parts, pad_columns
from tamiz_ops.formats.scaled_blocks import SCALED_BLOCKS, WITH_FACTORS

Bytes = npt.NDArray[np.uint8]

_TQ1_0_BYTES = 54


def read_blocks(format: Format, data: Bytes, k: int, factors: Floats | None = None) -> Parts:
    """Takes rows of blocks apart.

    Args:
        format: A format that holds a GGUF type.
        data: uint8 ``[N, row bytes]``. Rows of TQ1_0, which are shorter, also are ``tq2_0``.
        k: Inputs, a multiple of the format's block.
        factors: float32 ``[N]``, what the values of each row are multiplied by; None for 1.

    Raises:
        ValueError: The bytes have another shape or type, `k` is no multiple, or the format holds no
            factors.
    """
    if factors is not None and format.name not in WITH_FACTORS:
        known = " or ".join(WITH_FACTORS)
        raise ValueError(f"format {format.name} holds no factors of outputs, expected {known}")
    if format.name in SCALED_BLOCKS:
        return _read_scaled(format, data, k, factors)
    if format.gguf is None:
        raise ValueError(f"format {format.name} holds no GGUF type, expected q4_k or the like")
    if format.is_float:
        return _read_floats(data, k)
    if k < 1 or k % format.block:
        raise ValueError(f"k is {k}, expected a multiple of {format.block} for {format.name}")
    if format.name == "tq2_0" and data.shape[-1] == k // SUPER_BLOCK * _TQ1_0_BYTES:
        data = _tq2_0_of_tq1_0(data)
    if format.name in GRID_BLOCKS:
        block_bytes, read = GRID_BLOCKS[format.name]
    else:
        block_bytes, read = format.block_bytes, _READERS[format.name]
    _check_rows(data, format.blocks(k) * block_bytes)
    return _by_output(read(np.ascontiguousarray(data).reshape(-1, block_bytes)), len(data))


def _read_scaled(format: Format, data: Bytes, k: int, factors: Floats | None) -> Parts:
    """Rows of blocks that are shorter than the format's."""
    inputs, block_bytes, read = SCALED_BLOCKS[format.name]
    if k < 1 or k % inputs:
        raise ValueError(f"k is {k}, expected a multiple of {inputs} for {format.name}")
    _check_rows(data, k // inputs * block_bytes)
    parts = _by_output(read(np.ascontiguousarray(data).reshape(-1, block_bytes)), len(data))
    assert parts.scales is not None
    if format.block != SUPER_BLOCK:
        scales = parts.scales if factors is None else parts.scales * factors[:, None]
        return replace(parts, scales=scales)
    scales = pad_columns(parts.scales, SUPER_BLOCK // format.group)
    d = np.full((len(data), format.blocks(k)), 0.5, np.float32)  # a codebook has doubled numbers
    if factors is not None:
        d *= factors[:, None]
    return Parts(parts.quants, scales, d=d)


def _by_output(parts: Parts, n: int) -> Parts:
    """Parts by block as those of n outputs."""
    others = (parts.scales, parts.minima, parts.d, parts.dmin)
    rows = (None if array is None else array.reshape(n, -1) for array in others)
    return Parts(parts.quants.reshape(n, -1), *rows)


def _half(fields: Bytes) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(fields).view(np.float16)


def _nibbles(fields: Bytes, run: int) -> Bytes:
    """Low nibbles of `run` bytes, then their high nibbles, and so on."""
    runs: Bytes = fields.reshape(len(fields), -1, 1, run) >> np.array([[0], [4]], np.uint8)
    nibbles: Bytes = (runs & np.uint8(15)).reshape(len(fields), -1)
    return nibbles


def _pairs(fields: Bytes) -> Bytes:
    """The four 2-bit fields of 32 bytes, one field of all bytes after the other."""
    shifts = np.array([[0], [2], [4], [6]], np.uint8)
    runs: Bytes = fields.reshape(len(fields), -1, 1, 32) >> shifts
    pairs: Bytes = (runs & np.uint8(3)).reshape(len(fields), -1)
    return pairs


def _single_bits(fields: Bytes) -> Bytes:
    """The eight bits of 32 bytes, one bit of all bytes after the other."""
    return np.unpackbits(fields[:, None], axis=1, bitorder="little").reshape(len(fields), -1)


def _read_4(minimum: bool, scale_bytes: int = 2) -> Callable[[Bytes], Parts]:
    def read(blocks: Bytes) -> Parts:
        scale = blocks[:, :scale_bytes]
        scales = scale.copy() if scale_bytes == 1 else _half(scale)
        minima = _half(blocks[:, 2:4]) if minimum else None
        return Parts(_nibbles(blocks[:, scale_bytes + 2 * minimum :], 16), scales, minima)

    return read


def _read_5(minimum: bool) -> Callable[[Bytes], Parts]:
    def read(blocks: Bytes) -> Parts:
        at = 4 if minimum else 2
        high = np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little")
        quants = _nibbles(blocks[:, at + 4 :], 16) | high << 4
        return Parts(quants, _half(blocks[:, :2]), _half(blocks[:, 2:4]) if minimum else None)

    return read


def _read_q8_0(blocks: Bytes) -> Parts:
    return Parts(blocks[:, 2:] ^ np.uint8(128), _half(blocks[:, :2]))


def _six_bits(fields: Bytes) -> tuple[Bytes, Bytes]:
    """8 scales and 8 minima of 6 bits from 12 bytes, as in q4_k and q5_k."""
    low, middle, high = fields[:, :4], fields[:, 4:8], fields[:, 8:]
    scales = np.hstack([low & 63, (high & 15) | (low >> 2 & 48)])
    return scales, np.hstack([middle & 63, (high >> 4) | (middle >> 2 & 48)])


def _read_q4_k(blocks: Bytes) -> Parts:
    scales, minima = _six_bits(blocks[:, 4:16])
    quants = _nibbles(blocks[:, 16:], 32)
    return Parts(quants, scales, minima, _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _read_q5_k(blocks: Bytes) -> Parts:
    scales, minima = _six_bits(blocks[:, 4:16])
    high = _single_bits(blocks[:, 16:48])
    quants = _nibbles(blocks[:, 48:], 32) | high << 4
    return Parts(quants, scales, minima, _half(blocks[:, :2]), _half(blocks[:, 2:4]))


def _read_q6_k(blocks: Bytes) -> Parts:
    quants = _nibbles(blocks[:, :128], 64) | _pairs(blocks[:, 128:192]) << 4
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return Parts(quants, scales, d=_half(blocks[:, 208:]))


def _read_q2_k(blocks: Bytes) -> Parts:
    both = blocks[:, :16]
    quants = _pairs(blocks[:, 16:80])
    return Parts(quants, both & 15, both >> 4, _half(blocks[:, 80:82]), _half(blocks[:, 82:]))


def _read_q3_k(blocks: Bytes) -> Parts:
    low = _nibbles(blocks[:, 96:104], 8)
    high = blocks[:, None, 104:108] >> np.array([[0], [2], [4], [6]], np.uint8) & 3
    scales = low | high.reshape(len(blocks), -1) << 4
    quants = _pairs(blocks[:, 32:96]) | _single_bits(blocks[:, :32]) << 2
    return Parts(quants, scales, d=_half(blocks[:, 108:]))


def _read_iq4_xs(blocks: Bytes) -> Parts:
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = np.stack([blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4], axis=2).reshape(len(blocks), -1)
    scales = low | (high & 3).astype(np.uint8) << 4
    return Parts(_nibbles(blocks[:, 8:], 16), scales, d=_half(blocks[:, :2]))


def _read_tq2_0(blocks: Bytes) -> Parts:
    return Parts(_pairs(blocks[:, : SUPER_BLOCK // 4]), d=_half(blocks[:, SUPER_BLOCK // 4 :]))


def _tq2_0_of_tq1_0(data: Bytes) -> Bytes:
    """Rows of TQ1_0, five elements of {0, 1, 2} in a byte, as rows of TQ2_0, four in a byte.

    A byte of TQ1_0 is a fraction of 256: its first element is the digit before the point after
    multiplying by 3, its second one after multiplying by 9, and so on.
    """
    blocks = np.ascontiguousarray(data).reshape(-1, _TQ1_0_BYTES)

    def digits(fields: Bytes, count: int) -> Bytes:
        powers = 3 ** np.arange(count, dtype=np.uint8)[:, None]
        fractions = (fields[:, None] * powers).astype(np.uint16)
        return (fractions * 3 >> 8).astype(np.uint8).reshape(len(fields), -1)

    elements = [digits(blocks[:, :32], 5), digits(blocks[:, 32:48], 5), digits(blocks[:, 48:52], 4)]
    runs = np.hstack(elements).reshape(len(blocks), 2, 4, 32)
    fields = np.bitwise_or.reduce(runs << np.array([[0], [2], [4], [6]], np.uint8), axis=2)
    whole = np.hstack([fields.reshape(len(blocks), -1), blocks[:, 52:]])
    return whole.reshape(len(data), -1)


def _read_floats(data: Bytes, k: int) -> Parts:
    _check_rows(data, 2 * k)
    return Parts(np.ascontiguousarray(data).view("<u2"))


def _check_rows(data: Bytes, row_bytes: int) -> None:
    if data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != row_bytes:
        raise ValueError(
            f"data is {data.dtype} {list(data.shape)}, expected uint8 [N, {row_bytes}]"
        )


_READERS: dict[str, Callable[[Bytes], Parts]] = {
    "q4_0": _read_4(minimum=False),
    "q4_1": _read_4(minimum=True),
    "q5_0": _read_5(minimum=False),
    "q5_1": _read_5(minimum=True),
    "q8_0": _read_q8_0,
    "iq4_nl": _read_4(minimum=False),
    "mxfp4": _read_4(minimum=False, scale_bytes=1),
    "q2_k": _read_q2_k,
    "q3_k": _read_q3_k,
    "q4_k": _read_q4_k,
    "q5_k": _read_q5_k,
    "q6_k": _read_q6_k,
    "iq4_xs": _read_iq4_xs,
    "tq2_0": _read_tq2_0,
}
