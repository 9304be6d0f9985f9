"""Weights ``[N, K]`` that a graph stores in fewer bits, and the weight formats that hold them.

Each value keeps its bits: scale (quant - zero point) as ONNX Runtime computes it, or a float of 16
bits. Scales that fp16 holds are kept in fp16, and zero points that are the middle of their range
are not kept at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats import FORMATS, GROUP, Format, Parts, affine_format, pack_parts

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

#: Inputs that share a scale in a format: powers of two between these.
_LEAST, _MOST = 16, 1024


class NotStoredError(Exception):
    """Why a weight stays as another tool stored it. One sentence without its subject."""


class StoredMatrix(Protocol):
    """A weight ``[n, k]``, which is read when it is needed."""

    @property
    def n(self) -> int:
        """Outputs."""

    @property
    def k(self) -> int:
        """Inputs."""

    @property
    def format(self) -> Format:
        """The format that holds it."""

    def parts(self) -> Parts:
        """Its values in that format."""


@dataclass(frozen=True)
class AffineMatrix:
    """w = scale (quant - zero point), blocks of inputs share a scale.

    Attributes:
        n: Outputs.
        k: Inputs.
        format: The format that holds it.
        read: Reads the quants, uint8 ``[n, k]``.
        scales: Float16 or float32 ``[n, blocks]``.
        zeros: uint8 or float32 ``[n, blocks]``; None where all are the middle of the range.
    """

    n: int
    k: int
    format: Format
    read: Callable[[], npt.NDArray[np.uint8]]
    scales: Array
    zeros: Array | None

    def parts(self) -> Parts:
        """Its values in the format."""
        return Parts(self.read(), self.scales, self.zeros)


@dataclass(frozen=True)
class HalfMatrix:
    """Floats of 16 bits.

    Attributes:
        n: Outputs.
        k: Inputs.
        format: f16 or bf16.
        read: Reads the bits of the numbers, uint16 ``[n, k]``.
    """

    n: int
    k: int
    format: Format
    read: Callable[[], npt.NDArray[np.uint16]]

    def parts(self) -> Parts:
        """Its values in the format."""
        return Parts(self.read())


def packed(matrix: StoredMatrix) -> npt.NDArray[np.uint8]:
    """The tiles of a matrix, uint8 ``[ceil(n / 16), tile bytes]``.

    Raises:
        ValueError: It holds a number that is infinite or NaN.
    """
    return pack_parts(matrix.format, matrix.parts())


def values(matrix: StoredMatrix) -> Floats:
    """The values of a matrix, float32 ``[n, k]``."""
    return matrix.parts().values(matrix.format)


def affine_matrix(
    bits: int,
    k: int,
    block: int,
    read: Callable[[], npt.NDArray[np.uint8]],
    scales: Floats,
    zeros: Array | None,
) -> AffineMatrix:
    """A matrix in the smallest format that holds it bit for bit.

    Args:
        bits: Of a quant: 2, 4 or 8.
        k: Inputs.
        block: Inputs that share a scale; the last block may have fewer.
        read: Reads the quants, uint8 ``[N, k]``.
        scales: Float32 ``[N, ceil(k / block)]``.
        zeros: Zero points, uint8 or float32, of the same shape; None for 2^(bits - 1).

    Raises:
        NotStoredError: No format holds the block, or a number is not finite.
    """
    for name, array in (("scales", scales), ("zero points", zeros)):
        if array is not None and not np.isfinite(array.astype(np.float32)).all():
            raise NotStoredError(f"has {name} that are not finite")
    block, times = _held_block(block, k)
    held = -(-k // block) if block else 1
    scales = np.repeat(scales, times, axis=1)[:, :held]
    if zeros is not None:
        zeros = _fewest_bytes(np.repeat(zeros, times, axis=1)[:, :held], bits)
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16)
    half = bool((halves.astype(np.float32) == scales).all())
    format: Format = affine_format(
        bits,
        block,
        halves=half,
        zeros=zeros is not None,
        float_zeros=zeros is not None and zeros.dtype == np.float32,
    )
    if format.name == "affine4_32h" and k % GROUP == 0:
        format = FORMATS["q4_0"]  # the same, and known to other tools
    return AffineMatrix(len(scales), k, format, read, halves if half else scales, zeros)


def _held_block(block: int, k: int) -> tuple[int, int]:
    """The inputs that share a scale in a format, 0 for all, and how often scales are repeated."""
    if block >= k:
        return 0, 1
    held = min(block & -block, _MOST)
    if held < _LEAST:
        raise NotStoredError(f"has a scale for every {block} inputs, expected a multiple of 16")
    return held, block // held


def _fewest_bytes(zeros: Array, bits: int) -> Array | None:
    """Zero points as bytes where they are whole; None where all are the usual one."""
    if (zeros == 1 << (bits - 1)).all():
        return None
    whole = zeros.astype(np.float32)
    if ((whole >= 0) & (whole <= 255) & (np.rint(whole) == whole)).all():
        return zeros.astype(np.uint8)
    return whole
