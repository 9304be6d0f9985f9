r"""Fits channel-scale (AWQ, Lin et al. 2023, arXiv 2306.00978).

    y = W x = (W diag(s)) (x / s),    Ŵ = int4(W diag(s)) diag(1/s),    s_k = m_k^(α/2)

m is the imatrix, the mean of x². Channels that carry much of the input are rounded in finer steps
at the cost of the others of their group. s is scaled to a geometric mean of 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import tamiz_ops
from tamiz.api import Cost, Fit, FitError, Site, Statistics, TechniqueConfig

#: Exponents that are tried where none is given.
_ALPHAS = tuple(step / 8 for step in range(9))
#: Bytes of 16 outputs and 32 inputs: int4, scale and minimum in fp16.
_TILE, _GROUP, _RECORD = 16, 32, 320

Float = NDArray[np.float32]


class ChannelScaleConfig(TechniqueConfig):
    """How strongly an input channel's size counts."""

    alpha: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Exponent α of the channels' root mean square; by default the best of nine on "
        "the calibration samples. 0 is plain int4.",
    )


def fit(
    site: Site, weight: Float, statistics: Statistics | None, config: ChannelScaleConfig
) -> Fit:
    """Scales, rounds and packs one weight.

    Args:
        site: The site.
        weight: float32 ``[N, K]``.
        statistics: The imatrix makes the scales, the samples choose α.
        config: The configuration.

    Returns:
        ``weight`` (packed int4) and ``inverse`` (1 / s, ``[K]``), and the chosen α among the
        metrics.

    Raises:
        FitError: There is no calibration, or the weight cannot be rounded to int4.
    """
    if statistics is None:
        raise FitError("its scales are made from a calibration, see 'tamiz calibrate'")
    n, k = weight.shape
    alphas = _ALPHAS if config.alpha is None else (config.alpha,)
    tried = [_pack(weight, _scales(statistics.imatrix, alpha)) for alpha in alphas]
    errors = [_error(weight, *each, statistics.samples) for each in tried]
    best = int(np.argmin(errors))
    packed, inverse = tried[best]
    return Fit(
        tensors={"weight": packed, "inverse": inverse},
        attributes={"bits": 4, "n": n, "k": k},
        metrics={"channel_scale.alpha": alphas[best]},
        bits_per_weight=8 * (packed.nbytes + inverse.nbytes) / (n * k),
    )


def dequantize(site: Site, fit: Fit) -> Float:
    """Ŵ, float32 ``[N, K]``."""
    return _unpack(fit.tensors["weight"], fit.tensors["inverse"], site.out_features)


def cost(site: Site, config: ChannelScaleConfig) -> Cost:
    """Exact: the packed weight and one number for each input."""
    tiles, groups = -(-site.out_features // _TILE), -(-site.in_features // _GROUP)
    stored = tiles * groups * _RECORD + 4 * site.in_features
    return Cost(stored, stored)


def _scales(imatrix: Float, alpha: float) -> Float:
    """s ``[K]``; a channel that is always 0 counts as the smallest of the others."""
    rms = np.sqrt(imatrix.astype(np.float64))
    rms = np.maximum(rms, rms[rms > 0].min(initial=1.0))
    logs = alpha * np.log(rms)
    s: Float = np.exp(logs - logs.mean()).astype(np.float32)
    return s


def _pack(weight: Float, s: Float) -> tuple[NDArray[np.uint8], Float]:
    try:
        packed: Any = tamiz_ops.pack_int4(*tamiz_ops.quantize_groups(weight * s, 4))
    except ValueError as error:
        raise FitError(str(error)) from error
    return packed, (1 / s).astype(np.float32)


def _unpack(packed: NDArray[np.uint8], inverse: Float, n: int) -> Float:
    w: Float = tamiz_ops.dequantize(packed, 4, n, len(inverse)) * inverse
    return w


def _error(weight: Float, packed: NDArray[np.uint8], inverse: Float, samples: Float) -> float:
    """‖X (W − Ŵ)ᵀ‖."""
    return float(np.linalg.norm(samples @ (weight - _unpack(packed, inverse, len(weight))).T))
