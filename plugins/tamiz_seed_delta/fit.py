r"""Fits seed-delta: Ŵ = W0 + R̂, W0 a base (`bases.py`), R̂ what is stored of the residual W − W0.

Scheme `block`: of every 16 outputs, which share a tile of the kernel, the k / block blocks of
inputs with the most energy Σ m R². Scheme `coo`: of every output the k largest √m |R|. m is the
imatrix.

Refit (optional): with the support fixed, what is stored minimises ‖X (W − Ŵ)ᵀ‖² on the calibration
samples X [S, K]: with G = XᵀX / S + λ diag(m), R̂_S = R_S + G_SS⁻¹ G_SU R_U, where S is the support
and U the rest. So what is stored makes up for what is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from tamiz.site import Site
from tamiz.sparsity import importance, largest, largest_blocks
from tamiz.statistics import Statistics
from tamiz.technique import Cost, Fit, FitError
from tamiz_seed_delta.bases import Base, base_weight, fit_base, length
from tamiz_seed_delta.config import SeedDeltaConfig

GROUP = 32
TILE = 16
#: λ: the weight of the imatrix beside the samples' own covariance.
RIDGE = 0.05
#: How much longer a butterfly of a base's transform takes than a weight of an int4 product.
_WORK_TRANSFORM = 30

Float = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Residual:
    """A residual as it is stored.

    Attributes:
        tensors: ``deltas`` and ``starts``.
        weight: R̂, float32 ``[N, K]``.
    """

    tensors: dict[str, NDArray[Any]]
    weight: Float


def fit(site: Site, weight: Float, statistics: Statistics | None, config: SeedDeltaConfig) -> Fit:
    """Fits and packs one weight.

    Args:
        site: The site.
        weight: float32 ``[N, K]``.
        statistics: The imatrix weighs the inputs, the samples serve the refit.
        config: The configuration.

    Returns:
        The residual, the base's vectors, and ``exact`` and ``seed_delta.base_gain``: ‖W − Ŵ‖
        without the base over ‖W − Ŵ‖ with it, so 1 is a base that buys nothing.

    Raises:
        FitError: A weight is not finite, a scale is outside of fp16's range, or a refit is asked
            for without calibration samples.
    """
    weight = np.ascontiguousarray(weight, np.float32)
    if not np.isfinite(weight).all():
        raise FitError("it holds weights that are not finite")
    samples = None
    if config.refit:
        if statistics is None or len(statistics.samples) == 0:
            raise FitError("a refit needs the samples of a calibration")
        samples = statistics.samples
    n, k = weight.shape
    root_m = importance(statistics, k)
    base = fit_base(weight, root_m, config)
    residual = _fit_residual(weight - base.weight, root_m, samples, config)
    tensors = {**residual.tensors, **base.tensors}
    error = float(np.linalg.norm(weight - base.weight - residual.weight))
    metrics = {"exact": float(error == 0), "seed_delta.base_gain": 1.0}
    if config.base != "none" and error:
        plain = _fit_residual(weight, root_m, samples, config)
        metrics["seed_delta.base_gain"] = float(np.linalg.norm(weight - plain.weight)) / error
    return Fit(
        tensors=tensors,
        attributes=_attributes(n, k, base, config),
        metrics=metrics,
        bits_per_weight=8 * sum(tensor.nbytes for tensor in tensors.values()) / (n * k),
    )


def _attributes(n: int, k: int, base: Base, config: SeedDeltaConfig) -> dict[str, int | str]:
    return {
        "bits": config.bits,
        "n": n,
        "k": k,
        "base": config.base,
        "depth": config.depth,
        "seed": base.seed,
        "block": config.block,
    }


def dequantize(site: Site, fit: Fit) -> Float:
    """W0 + R̂, float32 ``[N, K]``, with the bits that the kernels multiply with."""
    a: dict[str, Any] = dict(fit.attributes)
    n, k = a["n"], a["k"]
    base = base_weight(n, k, a["base"], a["depth"], a["seed"], dict(fit.tensors))
    deltas, starts = fit.tensors["deltas"], fit.tensors["starts"]
    residual = tamiz_ops.unpack_deltas(deltas, starts, bits=a["bits"], n=n, k=k)
    w: Float = base + residual.astype(np.float32)
    return w


def cost(site: Site, config: SeedDeltaConfig) -> Cost:
    """The most bytes: of `block` exact but for padding, of `coo` the fit tells how many less."""
    n, k = site.out_features, site.in_features
    tiles, groups = -(-n // TILE), -(-k // GROUP)
    whole = 4 + (320 if config.bits == 4 else 544)
    if config.scheme == "block":
        residual = tiles * min(groups, _blocks(config) * (config.block // GROUP)) * whole
    else:
        single = tiles * TILE * min(k, config.k) * (2 + config.bits / 8)
        headers = min(groups * tiles, tiles * TILE * config.k) * (
            4 + (64 if config.bits == 4 else 32) + 1
        )
        residual = min(tiles * groups * whole, int(single) + headers)
    vectors = {"none": 0, "hadamard": n, "xor-circulant": n + length(n, k)}[config.base]
    stored = residual + tamiz_ops.DELTA_PADDING + 8 * (tiles + 1) + 4 * vectors
    if config.scheme == "block":
        work = 1.5 * tiles * TILE * min(groups * GROUP, config.k)
    else:
        work = min(2.4 * k, 14.0 * config.k) * n
    if config.base != "none":
        work += _WORK_TRANSFORM * length(n, k) * length(n, k).bit_length()
    return Cost(stored, stored, round(work))


def schedule(site: Site, config: SeedDeltaConfig) -> list[dict[str, Any]]:
    """Residuals of a quarter of the weights and more, with and without the other base."""
    other = "hadamard" if config.base == "none" else config.base
    shares = (0.25, 0.5, 0.75, 0.9, 1.0)
    return [
        {"k": max(1, round(share * site.in_features)), "base": base}
        for share in shares
        for base in ("none", other)
    ]


def _blocks(config: SeedDeltaConfig) -> int:
    return -(-config.k // config.block)


def _fit_residual(
    residual: Float, root_m: Float, samples: Float | None, config: SeedDeltaConfig
) -> Residual:
    stored, exists = _select(residual, root_m, config)
    if samples is not None:
        residual = _refitted(residual, stored, root_m, samples)
    n, k = residual.shape
    try:
        quantised = tamiz_ops.quantize_groups(residual, config.bits)
    except ValueError as error:
        raise FitError(str(error)) from error
    deltas, starts = tamiz_ops.pack_deltas(stored, exists, *quantised)
    weight = tamiz_ops.unpack_deltas(deltas, starts, bits=config.bits, n=n, k=k)
    return Residual({"deltas": deltas, "starts": starts}, weight.astype(np.float32))


def _select(residual: Float, root_m: Float, config: SeedDeltaConfig) -> tuple[Flags, Flags]:
    """Which weights are stored ``[N, K]``, and which groups of a tile hold any."""
    n, k = residual.shape
    groups, weighted = -(-k // GROUP), residual * root_m
    if config.scheme == "block":
        blocks = largest_blocks(weighted, TILE, config.block, _blocks(config))
        exists = np.repeat(blocks, config.block // GROUP, axis=1)[:, :groups]
        return np.repeat(np.repeat(exists, TILE, axis=0)[:n], GROUP, axis=1)[:, :k], exists
    stored = largest(np.abs(weighted), config.k)
    rows = np.logical_or.reduceat(stored, np.arange(0, n, TILE), axis=0)
    return stored, np.logical_or.reduceat(rows, np.arange(0, k, GROUP), axis=1)


def _refitted(residual: Float, stored: Flags, root_m: Float, samples: Float) -> Float:
    """The residual with what is stored refitted, 0 elsewhere; see the top of this file."""
    x = samples.astype(np.float64)
    gram = x.T @ x / len(x)
    m = np.square(root_m.astype(np.float64)) * np.trace(gram) / len(gram)
    gram += np.diag(RIDGE * m + 1e-12)
    refitted = np.zeros_like(residual)
    supports, members = np.unique(stored, axis=0, return_inverse=True)
    for index, support in enumerate(supports):
        rows = np.flatnonzero(members.ravel() == index)
        if not support.any():
            continue
        target = residual[rows].astype(np.float64) @ gram[:, support]
        solved = np.linalg.solve(gram[np.ix_(support, support)], target.T).T
        refitted[np.ix_(rows, np.flatnonzero(support))] = solved
    return refitted
