"""Weights in any format: encoders from float, and the decoders that the kernels agree with."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tamiz_ops import formats


def quantize(
    values: NDArray[np.float32],
    format: str,
    importance: NDArray[np.float32] | None = None,
    *,
    threads: int = 1,
) -> NDArray[np.uint8]:
    """Packs float weights in a format, after a search of scales and minima.

    Args:
        values: float32 ``[N, K]``, finite.
        format: One of `tamiz_ops.formats.FITTED`, such as ``q4_k`` or ``q3_k``.
        importance: float32 ``[K]``, what a squared error at each input costs, such as
            `Statistics.imatrix`; None counts all alike.
        threads: Threads; the bytes do not depend on them.

    Returns:
        The packed weight, uint8 ``[ceil(N / 16), tile bytes]``, as ``BlockMatMul`` reads it.

    Raises:
        ValueError: The format is unknown or only kept as stored, a shape or value does not fit,
            or a scale is too large for fp16.
    """
    return formats.quantize(
        formats.find_format(format), values, importance, search=True, threads=threads
    )


def dequantize(packed: NDArray[np.uint8], format: str, n: int, k: int) -> NDArray[np.float32]:
    """The values of a packed weight, with the bits that the kernels multiply with.

    Args:
        packed: uint8 ``[ceil(n / 16), tile bytes]``.
        format: Its format.
        n: Outputs.
        k: Inputs.

    Raises:
        ValueError: The format is unknown, or `packed` has another type or shape.
    """
    return formats.dequantize(formats.find_format(format), packed, n, k)
