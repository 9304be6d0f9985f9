"""TernaryMatMul in NumPy; part of `tamiz_ops.reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.pack import GROUP, unpack_ternary

Array = npt.NDArray[Any]


def ternary_matmul(
    x: Array,
    weight: Array,
    units: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    n: int,
    k: int,
    block: int = 32,
) -> list[Array]:
    """y = (x * mask) W^T + bias, w = unit * scale * level."""
    x = x.astype(np.float64)
    if mask is not None:
        x = x * (np.repeat(mask, block, axis=-1)[..., :k] != 0)
    levels, scales = unpack_ternary(weight, n, k)
    factors = units[:, None].astype(np.float64) * scales
    y = x @ (levels * np.repeat(factors, GROUP, axis=1)[:, :k]).T
    return [y if bias is None else y + bias]
