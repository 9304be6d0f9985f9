"""Skips what an old ONNX Runtime cannot run."""

from __future__ import annotations

import onnxruntime as ort
import pytest


def need_few_bits() -> None:
    """Skips the test before 1.24: GatherBlockQuantized of 8 bits, MatMulNBits of 2 and 8."""
    version = tuple(int(part) for part in ort.__version__.split(".")[:2])
    if version < (1, 24):
        pytest.skip(f"onnxruntime {ort.__version__} has no products of 2 bits, 1.24 has them")
