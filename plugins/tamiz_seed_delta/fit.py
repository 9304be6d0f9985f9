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
from tamiz.api import (
    Cost,
    Fit,
    FitError,
    Site,
    Statistics,
    importance,
    largest_blocks,
    largest_in_rows,
)
from tamiz_ops.formats import GROUP, TILE, find_format, int_format
from tamiz_seed_delta.bases import Base, base_weight, fit_base, length
from tamiz_seed_delta.config import SeedDeltaConfig

_FORMATS = {4: int_format(4), 8: int_format(8), 16: find_format("f16")}
#: Bytes of a group of a tile, stored whole, by bits.
WHOLE_BYTES = {bits: form.tile_bytes(GROUP) for bits, form in _FORMATS.items()}
#: Bytes of its scales and minima.
FACTOR_BYTES = {bits: whole - TILE * GROUP * bits // 8 for bits, whole in WHOLE_BYTES.items()}
#: λ: the weight of the imatrix beside the samples' own covariance.
RIDGE = 0.05
#: How much longer a butterfly of a base's transform takes than a weight of an int4 product.
_WORK_TRANSFORM = 30
#: How much longer SeedLM takes to make and multiply a weight, by its bits; both in the cache.
_WORK_SEEDLM = {3: 5, 4: 4}

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
    try:
        base = fit_base(weight, root_m, config)
    except ValueError as refusal:
        raise FitError(str(refusal)) from refusal
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
        "base_bits": config.base_bits,
        "depth": config.depth,
        "seed": base.seed,
        "block": config.block,
    }


def dequantize(site: Site, fit: Fit) -> Float:
    """W0 + R̂, float32 ``[N, K]``, with the bits that the kernels multiply with."""
    a: dict[str, Any] = dict(fit.attributes)
    n, k = a["n"], a["k"]
    base = base_weight(a, dict(fit.tensors))
    deltas, starts = fit.tensors["deltas"], fit.tensors["starts"]
    residual = tamiz_ops.unpack_deltas(deltas, starts, bits=a["bits"], n=n, k=k)
    w: Float = base + residual.astype(np.float32)
    return w


def cost(site: Site, config: SeedDeltaConfig) -> Cost:
    """Exact for whole blocks; else the most, as the size of `coo` depends on where weights lie."""
    n, k = site.out_features, site.in_features
    tiles, groups = -(-n // TILE), -(-k // GROUP)
    whole = 4 + WHOLE_BYTES[config.bits]
    if config.scheme == "block":
        residual = tiles * min(groups, _blocks(config) * (config.block // GROUP)) * whole
    else:
        single = tiles * TILE * min(k, config.k) * (2 + config.bits / 8)
        headers = min(groups * tiles, tiles * TILE * config.k) * (4 + FACTOR_BYTES[config.bits] + 1)
        residual = min(tiles * groups * whole, int(single) + headers)
    base = {
        "none": 0,
        "hadamard": 4 * n,
        "xor-circulant": 4 * (n + length(n, k)),
        "seedlm": tiles * groups * TILE * GROUP * config.base_bits // 8,
    }[config.base]
    stored = residual + tamiz_ops.DELTA_PADDING + 8 * (tiles + 1) + base
    whole_blocks = config.scheme == "block" and n % TILE == k % config.block == 0
    return Cost(stored, stored, _work(site, config), exact=config.k == 0 or whole_blocks)


def _work(site: Site, config: SeedDeltaConfig) -> int:
    n, k = site.out_features, site.in_features
    if config.scheme == "block":
        work = 1.5 * -(-n // TILE) * TILE * min(-(-k // GROUP) * GROUP, config.k)
    else:
        work = min(2.4 * k, 14.0 * config.k) * n
    if config.base == "seedlm":
        work += _WORK_SEEDLM[config.base_bits] * n * k
    elif config.base != "none":
        work += _WORK_TRANSFORM * length(n, k) * length(n, k).bit_length()
    return round(work)


def schedule(site: Site, config: SeedDeltaConfig) -> list[dict[str, Any]]:
    """SeedLM alone, and residuals alone and on the configured base.

    Cheapest first, up to what the whole weight takes as int4 with a minimum.
    """
    steps: list[dict[str, Any]] = [{"base": "seedlm", "base_bits": bits, "k": 0} for bits in (3, 4)]
    for base in dict.fromkeys(("none", config.base)):
        if base != "seedlm":
            shares = (1 / 4, 1 / 2, 3 / 4)
            steps += [{"base": base, "k": round(s * site.in_features)} for s in shares]
    most = -(-site.out_features // TILE) * -(-site.in_features // GROUP) * WHOLE_BYTES[4]
    bytes_of = [cost(site, config.model_copy(update=step)).stored for step in steps]
    order = sorted(range(len(steps)), key=bytes_of.__getitem__)
    return [steps[index] for index in order if bytes_of[index] <= most]


def _blocks(config: SeedDeltaConfig) -> int:
    return -(-config.k // config.block)


def _fit_residual(
    residual: Float, root_m: Float, samples: Float | None, config: SeedDeltaConfig
) -> Residual:
    stored, exists = _select(residual, root_m, config)
    if samples is not None:
        residual = _refitted(residual, stored, root_m, samples)
    n, k = residual.shape
    quantized = _quantized(residual, config.bits)
    deltas, starts = tamiz_ops.pack_deltas(stored, exists, *quantized)
    weight = tamiz_ops.unpack_deltas(deltas, starts, bits=config.bits, n=n, k=k)
    return Residual({"deltas": deltas, "starts": starts}, weight.astype(np.float32))


def _quantized(residual: Float, bits: int) -> tuple[NDArray[Any], ...]:
    """What `tamiz_ops.pack_deltas` takes: quants, scales and minima, or fp16 numbers."""
    if bits == 16:
        largest_half = float(np.finfo(np.float16).max)
        if np.abs(residual).max() > largest_half:
            raise FitError(f"a residual is above {largest_half:.0f}, fp16's largest")
        return (residual.astype(np.float16),)
    try:
        quants, scales, minima = tamiz_ops.quantize_groups(residual, bits)
    except ValueError as error:
        raise FitError(str(error)) from error
    return (quants, scales) if minima is None else (quants, scales, minima)


def _select(residual: Float, root_m: Float, config: SeedDeltaConfig) -> tuple[Flags, Flags]:
    """Which weights are stored ``[N, K]``, and which groups of a tile hold any."""
    n, k = residual.shape
    groups, weighted = -(-k // GROUP), residual * root_m
    if config.scheme == "block":
        blocks = largest_blocks(weighted, TILE, config.block, _blocks(config))
        exists = np.repeat(blocks, config.block // GROUP, axis=1)[:, :groups]
        return np.repeat(np.repeat(exists, TILE, axis=0)[:n], GROUP, axis=1)[:, :k], exists
    stored = largest_in_rows(np.abs(weighted), config.k)
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
