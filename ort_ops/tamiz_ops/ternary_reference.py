"""TernaryMatMul and PopcountMatMul in NumPy; part of `tamiz_ops.reference`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.formats import GROUP
from tamiz_ops.masked import masked
from tamiz_ops.pack import unpack_ternary

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
    x = masked(x.astype(np.float64), mask, block)
    levels, scales = unpack_ternary(weight, n, k)
    factors = units[:, None].astype(np.float64) * scales
    y = x @ (levels * np.repeat(factors, GROUP, axis=1)[:, :k]).T
    return [y if bias is None else y + bias]


def popcount_matmul(
    x: Array,
    weight: Array,
    units: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    n: int,
    k: int,
    block: int = 32,
    epsilon: float = 0.0,
    density: float = 1.0,
) -> list[Array]:
    """y = (gamma a) W^T + bias; rows with too many a that are not 0 as `ternary_matmul`.

    a = sign(x) where |x| > epsilon mean|x|, gamma = mean|x| where a is not 0, by group. Which a are
    0 is decided in float32, as the kernels do.
    """
    x = masked(x, mask, block)
    groups = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -k % GROUP)])
    groups = groups.reshape(*x.shape[:-1], -1, GROUP)
    sizes = np.abs(groups)
    mean = np.cumsum(sizes / np.float32(GROUP), axis=-1, dtype=np.float32)[..., -1:]
    chosen = sizes > np.float32(epsilon) * mean
    count = chosen.sum(axis=-1, keepdims=True)
    gamma = np.where(chosen, sizes, 0).sum(axis=-1, keepdims=True, dtype=np.float64)
    gamma = np.where(np.isfinite(mean), gamma / np.maximum(count, 1), np.nan)
    packed = (gamma * np.where(chosen, np.sign(groups), 0)).reshape(*x.shape[:-1], -1)[..., :k]
    sparse = count.sum(axis=(-2, -1))[..., None] <= density * k
    return ternary_matmul(np.where(sparse, packed, x), weight, units, None, bias, n=n, k=k)
