"""Tensors of Microsoft's type I2_S: their values, and what is refused."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from tamiz.files.errors import TamizError
from tamiz_exporters.gguf_file import GgufFile

SCALE = 0.0859375  # a bfloat16, as transformers stores it


def packed(codes: np.ndarray, scale: float) -> bytes:
    """As ``quantize_i2_s`` of bitnet.cpp writes it, and its kernels for x86-64 read it.

    Element j of a run of 128 is in byte j mod 32, at the bits 6 − 2 (j div 32).
    """
    out = np.zeros(codes.size // 4, np.uint8)
    for i, code in enumerate(codes.ravel()):
        run, j = divmod(i, 128)
        out[32 * run + j % 32] |= code << 6 - 2 * (j // 32)
    return out.tobytes() + struct.pack("<f", scale) + bytes(28)


def write(path: Path, codes: np.ndarray, scale: float = SCALE) -> Path:
    """A file with a tensor of I2_S, and one behind it."""
    data, rows = packed(codes, scale), codes.shape[0]

    def info(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
        head = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", len(dims))
        return head + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", kind, offset)

    infos = info("w", (codes.shape[1], rows), 36, 0) + info("v", (3,), Type.F32, len(data))
    header = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + infos
    values = np.array([1, 2, 3], np.float32).tobytes()
    path.write_bytes(header + bytes(-len(header) % 32) + data + values + bytes(20))
    return path


def random_codes(columns: int = 512) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 3, (5, columns)).astype(np.uint8)


def test_values_are_levels_times_the_scale(tmp_path: Path) -> None:
    codes = random_codes()
    tensors = GgufFile(write(tmp_path / "x.gguf", codes)).tensors
    expected = (codes.astype(np.float32) - 1) * np.float32(SCALE)
    assert tensors["w"].type is Type.TQ2_0
    np.testing.assert_array_equal(tensors["w"].dequantize(), expected)
    np.testing.assert_array_equal(tensors["w"].dequantize(np.array([4, 0])), expected[[4, 0]])
    np.testing.assert_array_equal(tensors["v"].dequantize(), [1, 2, 3])


@pytest.mark.parametrize("scale", [0.1, 1e6, np.nan, 1e-9])
def test_a_scale_that_float16_does_not_hold_is_refused(tmp_path: Path, scale: float) -> None:
    file = GgufFile(write(tmp_path / "x.gguf", random_codes(), scale))
    with pytest.raises(TamizError, match=r"tensor w: scale: found .*, expected a number that fl"):
        file.tensors["w"].dequantize()


def test_a_code_that_stands_for_nothing_is_refused(tmp_path: Path) -> None:
    codes = random_codes()
    codes[2, 300] = 3
    file = GgufFile(write(tmp_path / "x.gguf", codes))
    with pytest.raises(TamizError, match="tensor w: codes: found a code of 3, expected 0, 1 or 2"):
        file.tensors["w"].dequantize()


def test_rows_of_another_length_are_refused(tmp_path: Path) -> None:
    message = "tensor w: dims[0]: found 384, expected a multiple of 256 for I2_S"
    with pytest.raises(TamizError, match=re.escape(message)):
        GgufFile(write(tmp_path / "x.gguf", random_codes(384)))


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "x.gguf", random_codes())
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(TamizError, match="was it downloaded whole"):
        GgufFile(path)
