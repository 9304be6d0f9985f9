"""Encoders: float weights into any format, by a search of scales and minima.

    minimise    Σ_k importance_k (w_k − ŵ_k)²        for every output and group

Scales, minima and factors are searched together (`src/ops/products/lattice.h`,
`format_fit.cc`). Weights that were decoded from the format come back, almost always bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops import _native
from tamiz_ops.formats.declared import SUPER_BLOCK, TILE, Format, Scales
from tamiz_ops.formats.packing import pack_parts
from tamiz_ops.formats.parts import SIGN, Floats, Parts

#: Formats that floats are fitted to.
FITTED = (
    "q8_0",
    "q6_k",
    "q5_k",
    "q5_1",
    "q5_0",
    "q4_k",
    "q4_1",
    "q4_units",
    "q4_0",
    "iq4_nl",
    "iq4_xs",
    "q3_k",
    "q2_k",
)

#: Least cost of an input, as a share of the mean: all weights are fitted to something.
_LEAST_COST = 1e-4
_CHUNK = 1 << 20  # weights that one call fits
_RANGES = {  # least and largest whole number of a scale, and what it is stored with
    Scales.UNITS: (0, 255, 0),
    Scales.SIX: (0, 63, 0),
    Scales.SIX_SIGNED: (-32, 31, SIGN),
    Scales.SIGNED_BYTE: (-128, 127, 0),
    Scales.FOUR: (0, 15, 0),
}


def quantize(
    format: Format,
    values: Floats,
    importance: Floats | None = None,
    *,
    search: bool = True,
    threads: int = 1,
) -> npt.NDArray[np.uint8]:
    """Packs float weights in a format.

    Args:
        format: One of `FITTED`.
        values: float32 ``[N, K]``, finite; may be strided.
        importance: float32 ``[K]``, how much an error at each input costs, such as the mean of its
            square (an imatrix); None counts all alike.
        search: False takes scales and minima from the extremes and rounds to nearest.
        threads: Threads; the bytes do not depend on them.

    Returns:
        uint8 ``[ceil(N / 16), tile bytes]``.

    Raises:
        ValueError: The format is none of `FITTED`, a shape or value does not fit, or a scale is
            too large for fp16.
    """
    check_weight(format, values)
    values = np.asarray(values, np.float32)
    cost = costs(importance, values.shape[1])
    packed = np.empty(format.packed_shape(*values.shape), np.uint8)

    def pack(rows: slice) -> None:
        parts = fit_parts(format, values[rows], cost, search)
        packed[rows.start // TILE : -(-rows.stop // TILE)] = pack_parts(format, parts)

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(pack, _row_chunks(*values.shape)):
            pass
    return packed


def fit_parts(format: Format, values: Floats, cost: Floats, search: bool = True) -> Parts:
    """Fits rows ``[N, K]`` with costs ``[K]`` of their inputs; see `quantize`."""
    arrays = _native.fit_format(description(format), values, cost, search)
    quants, scales, minima, d, dmin = arrays
    quants += np.uint8(_first(format))
    halves = None if d is None else d.view(np.float16)
    others = None if dmin is None else dmin.view(np.float16)
    return Parts(quants, _scales(format, scales), _minima(format, minima), halves, others)


def description(format: Format) -> tuple[Any, ...]:
    """What the native fits are told of a format."""
    if format.codebook is None:
        levels = [float(q - format.offset) for q in range(_first(format), 1 << format.bits)]
    else:
        levels = [float(value) for value in format.codebook]
    home = 2 if format.scales is Scales.UNITS else int(format.block == SUPER_BLOCK)
    low, high, _ = _RANGES.get(format.scales, (0, 0, 0))
    linear = format.codebook is None
    return levels, linear, format.minimum, home, format.group, format.block, low, high


def costs(importance: Floats | None, k: int) -> Floats:
    """Costs of errors at K inputs, 1 on average, none of them 0.

    Raises:
        ValueError: `importance` has another shape, is negative or not finite.
    """
    if importance is None:
        return np.ones(k, np.float32)
    cost = np.asarray(importance, np.float32)
    if cost.shape != (k,) or not np.isfinite(cost).all() or (cost < 0).any():
        raise ValueError(
            f"importance is {list(cost.shape)}, expected [{k}] finite numbers of at least 0"
        )
    mean = float(cost.mean(dtype=np.float64))
    relative: Floats = cost / mean if mean > 0 else np.ones_like(cost)
    relative += np.float32(_LEAST_COST)
    return relative


def quantizable(format: Format) -> bool:
    """Whether floats can be fitted to a format."""
    return format.name in FITTED


def check_weight(format: Format, values: npt.NDArray[Any]) -> None:
    """Raises ValueError where floats cannot be fitted to the format."""
    if not quantizable(format):
        raise ValueError(f"format is {format.name}, expected one of: {', '.join(FITTED)}")
    if values.ndim != 2 or 0 in values.shape or values.dtype.kind != "f":
        raise ValueError(f"values is {values.dtype} {list(values.shape)}, expected float32 [N, K]")
    if not np.isfinite(values).all():
        raise ValueError("values holds weights that are not finite")


def _row_chunks(n: int, k: int) -> Iterator[slice]:
    step = TILE * max(1, _CHUNK // (TILE * k))
    for start in count(0, step):
        if start >= n:
            return
        yield slice(start, min(n, start + step))


def _first(format: Format) -> int:
    """The least quant that is used: of eight bits the kernels take none of -128."""
    return int(format.name == "q8_0")


def _scales(format: Format, scales: npt.NDArray[np.uint16]) -> npt.NDArray[Any]:
    if format.scales is Scales.HALF:
        return scales.view(np.float16)
    signed: npt.NDArray[Any] = scales.view(np.int16) + np.int16(_RANGES[format.scales][2])
    return signed.astype(np.int8 if format.scales is Scales.SIGNED_BYTE else np.uint8)


def _minima(format: Format, minima: npt.NDArray[np.uint16] | None) -> npt.NDArray[Any] | None:
    if minima is None or format.scales is Scales.HALF:
        return None if minima is None else minima.view(np.float16)
    return minima.astype(np.uint8)
