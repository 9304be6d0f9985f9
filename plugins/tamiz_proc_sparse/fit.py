r"""Fits proc-sparse: which blocks exist, which deltas are stored.

    ŵ[o, i] = stored weight            where |Δ| is large, Δ = w − base · hash(o, i)
              base · hash(o, i)        elsewhere in a block that exists
              0                        in a block that does not

1. Fanout: of every 16 outputs, which share a tile of the kernel, the `fanout` blocks with the most
   energy Σ m_i w² exist. With `head_size`, at attention's weights, all outputs of a head share them
   (q, k, v), or there are as many in every head of inputs (o): the pattern keeps to heads, so what
   a window leaves out of a head costs no other head a block.
2. Soft shedding: deltas with √m_i |Δ| < shed_eps · rms(√m w_o) are dropped.
3. Hard shedding: of what is left an output keeps the `watermark` largest √m_i |Δ|.

m is the imatrix, mean x² of every input on the calibration text, 1 without calibration. What is
stored is the weight itself, the sum base + Δ: it does not inherit the noise of the hash. Stored
weights are int4 (scale and minimum) or int8 (scale) in groups of 32 inputs, as block-quant's; the
range is that of the whole group, so that weights that lie on Q4_1's levels come back exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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
from tamiz_ops.formats import GROUP, TILE, int_format
from tamiz_proc_sparse.config import ATTENTION, ProcSparseConfig

#: Bytes of a group of a tile that is stored whole, with its header, by bits.
RECORD_BYTES = {bits: 4 + int_format(bits).tile_bytes(GROUP) for bits in (4, 8)}
#: Standard deviation of the odd numbers −15 to 15.
HASH_DEVIATION = np.sqrt(85.0)
SEED = 0
#: How much longer a weight takes than one of int4 in the cache: in whole records
#: (`benchmarks/kernels/work.py`), and in records with gaps, which are unpacked first.
_WORK_WHOLE, _WORK_GAPS = 2.2, 10.0

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
        FitError: The target leaves this tensor out, the heads do not divide it, a weight is not
            finite, or a scale is outside of fp16's range.
    """
    if not config.takes(site.tensor):
        raise FitError(f"the target is {config.target}")
    weight = np.ascontiguousarray(weight, np.float32)
    try:
        quantized = tamiz_ops.quantize_groups(weight, config.bits)
    except ValueError as error:
        raise FitError(str(error)) from error
    n, k = weight.shape
    base = float(np.float32(config.base_scale * weight.std(dtype=np.float64) / HASH_DEVIATION))
    delta = weight - np.float32(base) * tamiz_ops.hash_weights(n, k, SEED) if base else weight
    kept = select(weight, delta, importance(statistics, k), config, _heads(site, config))
    groups = -(-k // GROUP)
    exists = np.repeat(kept.exists, config.block // GROUP, axis=1)[:, :groups]
    deltas, starts = tamiz_ops.pack_deltas(kept.stored, exists, *quantized)
    attributes = {"bits": config.bits, "n": n, "k": k, "base": base, "seed": SEED}
    attributes["block"] = config.block
    bits = 8 * (deltas.nbytes + starts.nbytes) / (n * k)
    packed = Fit({"deltas": deltas, "starts": starts}, attributes, {}, bits)
    metrics = {
        "exact": float(np.array_equal(dequantize(site, packed), weight)),
        "proc.fanout": float(kept.exists.sum(axis=1).mean()),
        "proc.stored": float(kept.stored.mean()),
        "proc.shed_soft": kept.shed_soft,
        "proc.shed_hard": kept.shed_hard,
    }
    return replace(packed, metrics=metrics)


def dequantize(site: Site, fit: Fit) -> Float:
    """The float32 weights ``[N, K]`` that the kernels multiply with."""
    attributes: dict[str, Any] = {
        name: value for name, value in fit.attributes.items() if name != "block"
    }
    w = tamiz_ops.unpack_deltas(fit.tensors["deltas"], fit.tensors["starts"], **attributes)
    return w.astype(np.float32)


def cost(site: Site, config: ProcSparseConfig) -> Cost:
    """Exact where nothing is shed; else the most: how much shedding saves depends on the weight."""
    tiles, groups = -(-site.out_features // TILE), -(-site.in_features // GROUP)
    heads = site.in_features // config.head_size if _per_input_head(site, config) else 1
    existing = min(groups, heads * config.fanout * (config.block // GROUP))
    stored = tiles * existing * RECORD_BYTES[config.bits] + tamiz_ops.DELTA_PADDING
    stored += 8 * (tiles + 1)
    times = _WORK_WHOLE if config.watermark >= existing * GROUP else _WORK_GAPS
    work = round(times * tiles * TILE * existing * GROUP)
    sheds = config.shed_eps > 0 or config.watermark < site.in_features
    whole = site.out_features % TILE == site.in_features % config.block == 0
    return Cost(stored, stored, work, exact=whole and not sheds)


def schedule(site: Site, config: ProcSparseConfig) -> list[dict[str, Any]]:
    """Watermarks from 60 % of the inputs on, then everything stored."""
    shares = (0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
    return [{"watermark": max(1, round(share * site.in_features))} for share in shares]


@dataclass(frozen=True)
class Heads:
    """What shares blocks, and what a fanout counts for: outputs and inputs."""

    outputs: int
    inputs: int


def _per_input_head(site: Site, config: ProcSparseConfig) -> bool:
    return config.head_size > 0 and site.tensor == "attn_o"


def _heads(site: Site, config: ProcSparseConfig) -> Heads:
    size = config.head_size
    if not size or site.tensor not in ATTENTION:
        return Heads(TILE, site.in_features)
    along_inputs = _per_input_head(site, config)
    width = site.in_features if along_inputs else site.out_features
    if width % size or (along_inputs and size % config.block):
        raise FitError(
            f"head_size is {size}, expected a divisor of {width}"
            + (f" and a multiple of block {config.block}" if along_inputs else "")
        )
    return Heads(TILE, size) if along_inputs else Heads(size, site.in_features)


def select(
    weight: Float, delta: Float, root_m: Float, config: ProcSparseConfig, heads: Heads
) -> Selection:
    """Chooses the blocks and the deltas, see the top of this file."""
    n, k = weight.shape
    weighted = weight * root_m
    spans = (weighted[:, at : at + heads.inputs] for at in range(0, k, heads.inputs))
    parts = [largest_blocks(span, heads.outputs, config.block, config.fanout) for span in spans]
    exists = np.repeat(np.concatenate(parts, axis=1), heads.outputs // TILE, axis=0)
    there = np.repeat(np.repeat(exists, TILE, axis=0)[:n], config.block, axis=1)[:, :k]
    score = np.abs(delta) * root_m
    rms = np.sqrt(np.mean(np.square(weighted, dtype=np.float64), axis=1, keepdims=True))
    strong = there & (score >= config.shed_eps * rms)
    stored = strong
    if config.watermark < k:
        stored = strong & largest_in_rows(np.where(strong, score, -1), config.watermark)
    of, left, kept = (int(np.count_nonzero(flags)) for flags in (there, strong, stored))
    return Selection(exists, stored, 1 - left / of, (left - kept) / of)
