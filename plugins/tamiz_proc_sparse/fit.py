r"""Fits proc-sparse: which blocks exist, which deltas are stored.

    ŵ[o, i] = stored weight            where |Δ| is large, Δ = w − base · hash(o, i)
              base · hash(o, i)        elsewhere in a block that exists
              0                        in a block that does not

1. Fanout: of every 16 outputs, which share a tile of the kernel, the `fanout` blocks with the most
   energy Σ m_i w² exist.
2. Soft shedding: deltas with √m_i |Δ| < shed_eps · rms(√m w_o) are dropped.
3. Hard shedding: of what is left an output keeps the `watermark` largest √m_i |Δ|.

m is the imatrix, mean x² of every input on the calibration text, 1 without calibration. What is
stored is the weight itself, the sum base + Δ: it does not inherit the noise of the hash. Stored
weights are int4 (scale and minimum) or int8 (scale) in groups of 32 inputs, as block-quant's; the
range is that of the whole group, so that weights that lie on Q4_1's levels come back exactly.
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
from tamiz_proc_sparse.config import ProcSparseConfig

GROUP = 32
TILE = 16
#: Bytes of a group of a tile that is stored whole, with its header, by bits.
RECORD_BYTES = {4: 4 + 320, 8: 4 + 544}
#: Standard deviation of the odd numbers −15 to 15.
HASH_DEVIATION = np.sqrt(85.0)
SEED = 0
#: How much longer a weight takes than one of int4 in the cache: in whole records, which come from
#: memory, and in records with gaps, which are unpacked first.
_WORK_WHOLE, _WORK_GAPS = 2.5, 10.0

Float = NDArray[np.float32]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Selection:
    """What is kept of a weight.

    Attributes:
        exists: ``[ceil(N / 16), ceil(K / block)]``, the blocks of a tile that exist.
        stored: ``[N, K]``, where a delta is stored.
        shed_soft: Share of the existing deltas that `shed_eps` dropped.
        shed_hard: Share of the existing deltas that `watermark` dropped.
    """

    exists: Flags
    stored: Flags
    shed_soft: float
    shed_hard: float


def fit(site: Site, weight: Float, statistics: Statistics | None, config: ProcSparseConfig) -> Fit:
    """Fits and packs one weight.

    Args:
        site: The site.
        weight: float32 ``[N, K]``.
        statistics: The imatrix weighs the inputs; None weighs them alike.
        config: The configuration.

    Returns:
        The records, where they start, and ``exact``, ``proc.fanout`` (blocks an output reads),
        ``proc.stored`` (share of the weights that is stored), ``proc.shed_soft`` and
        ``proc.shed_hard`` (shares of the existing deltas that were dropped).

    Raises:
        FitError: The target leaves this tensor out, a weight is not finite, or a scale is outside
            of fp16's range.
    """
    if not config.takes(site.tensor):
        raise FitError(f"the target is {config.target}")
    weight = np.ascontiguousarray(weight, np.float32)
    try:
        quantised = tamiz_ops.quantize_groups(weight, config.bits)
    except ValueError as error:
        raise FitError(str(error)) from error
    n, k = weight.shape
    base = float(np.float32(config.base_scale * weight.std(dtype=np.float64) / HASH_DEVIATION))
    delta = weight - np.float32(base) * tamiz_ops.hash_weights(n, k, SEED) if base else weight
    kept = select(weight, delta, importance(statistics, k), config)
    groups = -(-k // GROUP)
    exists = np.repeat(kept.exists, config.block // GROUP, axis=1)[:, :groups]
    deltas, starts = tamiz_ops.pack_deltas(kept.stored, exists, *quantised)
    made = Fit(
        tensors={"deltas": deltas, "starts": starts},
        attributes={
            "bits": config.bits,
            "n": n,
            "k": k,
            "base": base,
            "seed": SEED,
            "block": config.block,
        },
        metrics={},
        bits_per_weight=8 * (deltas.nbytes + starts.nbytes) / (n * k),
    )
    metrics = {
        "exact": float(np.array_equal(dequantize(site, made), weight)),
        "proc.fanout": float(kept.exists.sum(axis=1).mean()),
        "proc.stored": float(kept.stored.mean()),
        "proc.shed_soft": kept.shed_soft,
        "proc.shed_hard": kept.shed_hard,
    }
    return Fit(made.tensors, made.attributes, metrics, made.bits_per_weight)


def dequantize(site: Site, fit: Fit) -> Float:
    """The float32 weights ``[N, K]`` that the kernels multiply with."""
    attributes: dict[str, Any] = {
        name: value for name, value in fit.attributes.items() if name != "block"
    }
    w = tamiz_ops.unpack_deltas(fit.tensors["deltas"], fit.tensors["starts"], **attributes)
    return w.astype(np.float32)


def cost(site: Site, config: ProcSparseConfig) -> Cost:
    """The most bytes that it may take: what is shed makes it smaller, by how much the fit tells."""
    tiles, groups = -(-site.out_features // TILE), -(-site.in_features // GROUP)
    existing = min(groups, config.fanout * (config.block // GROUP))
    stored = tiles * existing * RECORD_BYTES[config.bits] + tamiz_ops.DELTA_PADDING
    stored += 8 * (tiles + 1)
    times = _WORK_WHOLE if config.watermark >= existing * GROUP else _WORK_GAPS
    return Cost(stored, stored, round(times * tiles * TILE * existing * GROUP))


def schedule(site: Site, config: ProcSparseConfig) -> list[dict[str, Any]]:
    """Watermarks from 60 % of the inputs on, then everything stored."""
    shares = (0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
    return [{"watermark": max(1, round(share * site.in_features))} for share in shares]


def select(weight: Float, delta: Float, root_m: Float, config: ProcSparseConfig) -> Selection:
    """Chooses the blocks and the deltas, see the top of this file."""
    n, k = weight.shape
    weighted = weight * root_m
    exists = largest_blocks(weighted, TILE, config.block, config.fanout)
    there = np.repeat(np.repeat(exists, TILE, axis=0)[:n], config.block, axis=1)[:, :k]
    score = np.abs(delta) * root_m
    rms = np.sqrt(np.mean(np.square(weighted, dtype=np.float64), axis=1, keepdims=True))
    strong = there & (score >= config.shed_eps * rms)
    stored = strong
    if config.watermark < k:
        stored = strong & largest(np.where(strong, score, -1), config.watermark)
    of, left, kept = (int(np.count_nonzero(flags)) for flags in (there, strong, stored))
    return Selection(exists, stored, 1 - left / of, (left - kept) / of)
