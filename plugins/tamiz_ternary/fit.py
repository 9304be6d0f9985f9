r"""Fits ternary: w ≈ unit[o] · scale[o, g] · t, t in {−1, 0, +1}, a scale for every 32 inputs.

Least squares with weights m_i, the imatrix (ternary weight networks, Li et al. 2016, by group):

    min Σ_i m_i (w_i − s t_i)²    t_i = sign(w_i) where |w_i| > s / 2, else 0

so the inputs with t ≠ 0 are those of the c largest |w|, and for every c

    s = Σ_c m |w| / Σ_c m,    the error falls by (Σ_c m |w|)² / Σ_c m

All c are tried, so threshold and scale are the best there are. Weights that are levels times a
scale come back bit for bit, where the scales of an output are one number or have 11 bits (fp16).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from tamiz.api import Access, Cost, Fit, FitError, Part, Site, Statistics, importance
from tamiz_ops.formats import GROUP, TILE
from tamiz_ternary.config import TernaryConfig

#: Bytes of a group of a tile: two planes of bits, fp16 scales.
_PLANES, _SCALES = 2 * TILE * GROUP // 8, 2 * TILE
#: An input that the calibration text never used counts this much of the mean.
_LEAST = 1e-6
#: Outputs that are fitted at once.
_CHUNK = 256

Float = NDArray[np.float32]


def fit(site: Site, weight: Float, statistics: Statistics | None, config: TernaryConfig) -> Fit:
    """Fits and packs one weight.

    Args:
        site: The site.
        weight: float32 ``[N, K]``.
        statistics: The imatrix weighs the inputs; None weighs them alike.
        config: The largest error.

    Returns:
        ``weight``, packed, ``units`` float32 ``[N]``; ``exact`` and ``ternary.zeros`` (share of
        the weights that are 0).

    Raises:
        FitError: A weight is not finite, or the error is larger than the configuration allows.
    """
    if not np.isfinite(weight).all():
        raise FitError("it holds weights that are not finite")
    n, k = weight.shape
    m = np.maximum(np.square(importance(statistics, k), dtype=np.float64), _LEAST)
    parts = [_levels(weight[at : at + _CHUNK], m) for at in range(0, n, _CHUNK)]
    levels = np.concatenate([part[0] for part in parts])
    units, scales = _units(np.concatenate([part[1] for part in parts]))
    packed = tamiz_ops.pack_ternary(levels, scales)
    fitted = _product(levels, scales, units)
    error = _relative_error(weight, fitted, m)
    if error > config.max_error:
        raise FitError(f"its relative error is {error:.3f}, more than {config.max_error:g}")
    return Fit(
        tensors={"weight": packed, "units": units},
        attributes={"n": n, "k": k},
        metrics={
            "exact": float(np.array_equal(fitted, weight)),
            "ternary.zeros": float(np.mean(levels == 0)),
        },
        bits_per_weight=8 * (packed.nbytes + units.nbytes) / (n * k),
    )


def dequantize(site: Site, fit: Fit) -> Float:
    """The float32 weights ``[N, K]`` that the kernels multiply with."""
    levels, scales = tamiz_ops.unpack_ternary(
        fit.tensors["weight"], site.out_features, site.in_features
    )
    return _product(levels, scales, fit.tensors["units"])


def cost(site: Site, config: TernaryConfig) -> Cost:
    """Bytes of the packed weight and the units."""
    tiles, groups = -(-site.out_features // TILE), -(-site.in_features // GROUP)
    units, scales = 4 * site.out_features, tiles * groups * _SCALES
    stored = tiles * groups * _PLANES + scales + units
    work = site.out_features * site.in_features
    return Cost(stored, stored, work, parts={Access.FIXED: Part(scales + units)})


def _levels(rows: Float, m: NDArray[np.float64]) -> tuple[NDArray[np.int8], Float]:
    """Levels ``[N, K]`` and scales float32 ``[N, groups]``; see the top of this file."""
    n, k = rows.shape
    size = np.pad(np.abs(rows.astype(np.float64)), ((0, 0), (0, -k % GROUP)))
    size = size.reshape(n, -1, GROUP)
    inputs = np.broadcast_to(np.pad(m, (0, -k % GROUP)).reshape(1, -1, GROUP), size.shape)
    order = np.argsort(-size, axis=2, kind="stable")
    chosen = np.take_along_axis(inputs, order, 2)
    total = np.cumsum(chosen * np.take_along_axis(size, order, 2), axis=2)
    count = np.cumsum(chosen, axis=2)
    best = np.argmax(total * (total / count), axis=2, keepdims=True)
    scales = np.take_along_axis(total / count, best, 2).astype(np.float32)
    kept = np.argsort(order, axis=2) <= best
    levels = (np.sign(rows) * kept.reshape(n, -1)[:, :k]).astype(np.int8)
    return levels, scales[:, :, 0]


def _units(scales: Float) -> tuple[Float, NDArray[np.float16]]:
    """A unit of every output ``[N]``, and its scales in that unit, fp16 ``[N, groups]``.

    The unit is 1 where fp16 holds all scales of the output, else the largest of them.
    """
    with np.errstate(over="ignore"):
        fits = (scales.astype(np.float16) == scales).all(axis=1)
    units = np.where(fits, np.float32(1), scales.max(axis=1))
    return units, (scales / units[:, None]).astype(np.float16)


def _product(levels: NDArray[np.int8], scales: NDArray[np.float16], units: Float) -> Float:
    factors = units[:, None] * scales.astype(np.float32)
    w: Float = levels * np.repeat(factors, GROUP, axis=1)[:, : levels.shape[1]]
    return w


def _relative_error(weight: Float, fitted: Float, m: NDArray[np.float64]) -> float:
    lost = np.square(weight.astype(np.float64) - fitted).sum(axis=0) @ m
    norm = np.square(weight, dtype=np.float64).sum(axis=0) @ m
    return float(np.sqrt(lost / norm)) if norm else 0.0
