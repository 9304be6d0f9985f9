r"""Fits int4 and int8 to groups of 32 weights along the input.

int4:  w ≈ scale · q + minimum,  q = round((w − minimum) / scale) in 0..15,
       scale = (max − min) / 15, minimum = min, both rounded to fp16 (ggml's Q4_1);
int8:  w ≈ scale · q,  q = round(w / scale) in −127..127, scale = max |w| / 127 in fp16 (Q8_0);
int4 with scales of 8 bits:  w ≈ unit · (scale · q − 8 · minimum), `in_units`;
a named format, such as q3_k, or another fit than nearest: `tamiz_block_quant.formats`.

The first two are idempotent: weights that were dequantised from Q4_1 or Q8_0 come back bit for bit,
because the extremes of a group give its scale and minimum exactly. Where a group holds at most 16
different values and min-max does not hit them all, other lattices are tried: Q4_0's
(minimum = the value of largest magnitude, scale = −minimum / 8, also negative), and those of
groups that leave the upper quants unused (scale = (max − min) / r for r < 15).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from tamiz.api import (
    Access,
    Cost,
    Fit,
    FitError,
    Part,
    Site,
    SiteKind,
    Statistics,
    taken_share,
)
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.formats import fit_format
from tamiz_block_quant.shared_scales import fit_shared
from tamiz_ops import formats
from tamiz_ops.formats import GROUP, TILE

#: Outputs that weights packed by channel are padded to.
CHANNEL_TILE = 64
#: What the units in the file are multiplied with, and the units that a minimum counts.
UNIT_STEP, MINIMUM_STEP = np.float32(2**-8), 8

_FP16_MAX = float(np.finfo(np.float16).max)
_CHUNK = 1 << 18

Float = NDArray[np.float32]


@dataclass(frozen=True)
class Quantized:
    """A quantised matrix.

    Attributes:
        quants: ``[N, K]``, uint8 in 0..15 or int8 in −127..127.
        scales: float16 ``[N, ceil(K / 32)]``; with `units` uint8.
        minima: likewise; None for int8.
        units: float16 ``[N]``, w = units / 256 · (scale · q − 8 · minimum); None for scales and
            minima of 16 bits.
    """

    quants: NDArray[Any]
    scales: NDArray[Any]
    minima: NDArray[Any] | None
    units: NDArray[np.float16] | None = None

    def dequantize(self) -> Float:
        """The float32 weights ``[N, K]`` that the kernels multiply with."""
        n, k = self.quants.shape
        groups = _grouped(self.quants.astype(np.float32))
        w = groups * self.scales[:, :, None].astype(np.float32)
        if self.minima is not None:
            step = 1 if self.units is None else -MINIMUM_STEP
            w += step * self.minima[:, :, None].astype(np.float32)
        if self.units is not None:
            w *= (self.units.astype(np.float32) * UNIT_STEP)[:, None, None]
        return w.reshape(n, -1)[:, :k]


def fit(
    site: Site,
    weight: Float,
    statistics: Statistics | None,
    config: BlockQuantConfig,
) -> Fit:
    """Fits and packs one weight.

    Args:
        site: The site; its kind decides the bits.
        weight: float32 ``[N, K]``.
        statistics: Of the input; read by the fits `search` and `gptq`.
        config: The bits or format, and the fit.

    Returns:
        The packed tensor and its metrics: ``rel_l2`` = ‖W − Ŵ‖ / ‖W‖, ``cos_mean_w`` = mean over
        outputs of cos(W_n, Ŵ_n), ``max_abs_error``, ``exact`` (1 if Ŵ = W bit for bit).

    Raises:
        FitError: A weight is not finite, or the scales lie outside of fp16's range.
    """
    n, k = weight.shape
    if config.shares_scales_at(site):
        return fit_shared(site, weight, config)
    if config.packs_by_format:
        return fit_format(site, weight, statistics, config)
    bits = config.bits_at(site)
    quantized, metrics = quantize(weight, bits, config.scale_bits_at(site))
    by_channel = config.by_channel(site)
    attributes = {"n": n, "k": k} if by_channel else {"bits": bits, "n": n, "k": k}
    quants, scales, minima = quantized.quants, quantized.scales, quantized.minima
    if minima is None:
        packed = tamiz_ops.pack_int8(quants, scales)
    elif quantized.units is None:
        pack = tamiz_ops.pack_channels if by_channel else tamiz_ops.pack_int4
        packed = pack(quants, scales, minima)
    else:
        in_units = tamiz_ops.pack_channels_in_units if by_channel else tamiz_ops.pack_int4_in_units
        packed = in_units(quants, scales, minima, quantized.units)
        attributes["scale_bits"] = 8
    return Fit(
        tensors={"weight": packed},
        attributes=attributes,
        metrics=metrics,
        bits_per_weight=8 * packed.nbytes / (n * k),
    )


def dequantize(site: Site, fit: Fit) -> Float:
    """The float32 weights ``[N, K]`` that the kernels multiply with."""
    n, k, packed = site.out_features, site.in_features, fit.tensors["weight"]
    if "format" in fit.attributes:
        format = formats.find_format(str(fit.attributes["format"]))
        return formats.dequantize(format, packed, n, k)
    scale_bits = int(fit.attributes.get("scale_bits", 16))
    if "bits" in fit.attributes:
        return tamiz_ops.dequantize(packed, int(fit.attributes["bits"]), n, k, scale_bits)
    if scale_bits == 8:
        return Quantized(*tamiz_ops.unpack_channels_in_units(packed, n, k)).dequantize()
    return Quantized(*tamiz_ops.unpack_channels(packed, n, k)).dequantize()


def cost(site: Site, config: BlockQuantConfig) -> Cost:
    """Bytes of the packed weight; a lookup reads one row of one tile, a product of experts those
    that a token takes. A mask reads less."""
    form = config.format_at(site)
    tile = CHANNEL_TILE if config.by_channel(site) else TILE
    n, row = -(-site.out_features // tile) * tile, form.row_bytes(site.in_features)
    if site.kind is SiteKind.EMBEDDING:
        return Cost(n * row, row)
    scales = n * (row - form.blocks(site.in_features) * GROUP * form.bits // 8)
    work, share = form.work * site.out_features * site.in_features, taken_share(site)
    fixed = {Access.FIXED: Part(round(share * scales))}
    return Cost(n * row, round(share * n * row), round(share * work), parts=fixed)


def takes(site: Site, config: BlockQuantConfig) -> bool:
    """Whether the packed weight, which has whole tiles of outputs, is smaller than float32."""
    return cost(site, config).stored < 4 * site.out_features * site.in_features


def options(site: Site) -> dict[str, dict[str, str]]:
    """The named formats whose blocks divide the inputs."""
    usable = (name for name, form in formats.FORMATS.items() if formats.quantizable(form))
    fitting = (n for n in usable if site.in_features % formats.FORMATS[n].block == 0)
    return {name: {"format": name} for name in fitting}


def granularities(site: Site, config: BlockQuantConfig) -> list[dict[str, int]]:
    """Numbers of inputs that share a scale, the fastest first: 128 and 32 at a linear layer of
    an encoder whose weights have 8 bits. A number that was requested stays."""
    requested = "scale_inputs" in config.model_fields_set
    if requested or site.decoder or not config.may_share_scales_at(site):
        return [{}]
    return [{"scale_inputs": 128}, {"scale_inputs": 32}]


def shares_badly(site: Site) -> bool:
    """Whether a scale for 128 inputs costs much there: attention's values alone were a third to
    four tenths of what MPNet and MiniLM lost by it (lab/2026-11-28-encoders-on-zen-5.md)."""
    return site.id.endswith(".attn_v")


def quantize(weight: Float, bits: int, scale_bits: int = 16) -> tuple[Quantized, dict[str, float]]:
    """Quantises a matrix ``[N, K]`` chunk by chunk and measures what it lost.

    Raises:
        FitError: A weight is not finite, or the scales lie outside of fp16's range.
    """
    parts = []
    lost = groups = 0
    error = norm = cosines = largest = 0.0
    for rows in _row_chunks(weight):
        part = _int4(rows) if bits == 4 else _int8(rows)
        if scale_bits == 8:
            part = in_units(rows, part)
        w = part.dequantize()
        # float64 sums: the metrics must not depend on how the chunks fall
        square = np.einsum("nk,nk->n", rows, rows, dtype=np.float64)
        norm += float(square.sum())
        if np.array_equal(rows, w):
            cosines += len(rows)
        else:
            difference = rows - w
            error += float(np.einsum("nk,nk->", difference, difference, dtype=np.float64))
            largest = max(largest, float(np.abs(difference).max()))
            cosines += _cosines(rows, w, square)
            vanished = (part.scales == 0) & _grouped(difference).any(axis=-1)
            lost += int(np.count_nonzero(vanished))
        groups += part.scales.size
        parts.append(part)
    if lost > groups / 2:
        raise FitError(f"{lost} of its {groups} groups need a scale below the smallest of fp16")
    metrics = {
        "rel_l2": float(np.sqrt(error / norm)) if norm else 0.0,
        "cos_mean_w": cosines / len(weight),
        "max_abs_error": largest,
        "exact": float(largest == 0),
    }
    return _joined(parts), metrics


def _cosines(rows: Float, w: Float, square: NDArray[np.float64]) -> float:
    """Sum over rows of cos(W_n, Ŵ_n); two rows of zeros are alike."""
    dot = np.einsum("nk,nk->n", rows, w, dtype=np.float64)
    length = np.sqrt(square * np.einsum("nk,nk->n", w, w, dtype=np.float64))
    alike = np.where(square == 0, 1.0, 0.0)
    return float(np.divide(dot, length, out=alike, where=length > 0).sum())


def _row_chunks(weight: Float) -> Iterator[Float]:
    """Contiguous slices of rows that stay in the cache."""
    step = _chunk_rows(weight.shape[1])
    for start in range(0, len(weight), step):
        rows = np.ascontiguousarray(weight[start : start + step], dtype=np.float32)
        if not np.isfinite(rows).all():
            raise FitError("it holds weights that are not finite")
        yield rows


def _chunk_rows(k: int) -> int:
    """Rows of a chunk."""
    return max(1, _CHUNK // k)


def _joined(parts: list[Quantized]) -> Quantized:
    minima = [part.minima for part in parts if part.minima is not None]
    units = [part.units for part in parts if part.units is not None]
    return Quantized(
        np.concatenate([part.quants for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate(minima) if minima else None,
        np.concatenate(units) if units else None,
    )


def _grouped(rows: Float) -> Float:
    """``[N, K]`` as ``[N, ceil(K / 32), 32]``; a last short group repeats its last weight."""
    n, k = rows.shape
    if k % GROUP:
        rows = np.pad(rows, ((0, 0), (0, -k % GROUP)), mode="edge")
    return rows.reshape(n, -1, GROUP)


def _extremes(groups: Float) -> tuple[Float, Float]:
    """Minimum and maximum of every group, by halving: faster than a reduction over 32."""
    low = high = groups
    while low.shape[-1] > 1:
        half = low.shape[-1] // 2
        low = np.minimum(low[..., :half], low[..., half:])
        high = np.maximum(high[..., :half], high[..., half:])
    return low[..., 0], high[..., 0]


def _fp16(values: Float) -> NDArray[np.float16]:
    if np.abs(values).max(initial=0.0) > _FP16_MAX:
        raise FitError(f"a group needs a scale or minimum above {_FP16_MAX:.0f}, fp16's largest")
    return values.astype(np.float16)


def _int8(rows: Float) -> Quantized:
    groups = _grouped(rows)
    low, high = _extremes(groups)
    scales = _fp16(np.maximum(high, -low) / np.float32(127))
    q = np.rint(groups * _inverse(scales)[..., None])
    return Quantized(_cut(np.clip(q, -127, 127), rows, np.int8), scales, None)


def _int4(rows: Float) -> Quantized:
    groups = _grouped(rows)
    low, high = _extremes(groups)
    scales, minima = _fp16((high - low) / np.float32(15)), _fp16(low)
    q = _quants(groups, scales, minima)
    missed = (_dequantized(q, scales, minima) != groups).any(axis=-1)
    few = np.zeros_like(missed)
    few[missed] = _at_most_16_values(groups[missed])
    if few.any():
        scales[few], minima[few], q[few] = _best_lattice(
            groups[few], scales[few], minima[few], q[few]
        )
    return Quantized(_cut(q, rows, np.uint8), scales, minima)


def in_units(rows: Float, fitted: Quantized) -> Quantized:
    """Rounds scales and minima of an int4 fit of `rows` to bytes that count a unit of their output.

    unit = max over groups of max(scale / 255, −minimum / (8 · 255)), the least that holds them all;
    scale = round(scale / unit); minimum = what keeps the middle of the group where it was; quants
    anew. A group above 0 is fitted to 0..max, a negative scale is the same lattice from its other
    end.
    """
    assert fitted.minima is not None
    scales, minima = fitted.scales.astype(np.float32), fitted.minima.astype(np.float32)
    low, high = np.minimum(minima, minima + 15 * scales), np.maximum(minima, minima + 15 * scales)
    groups = _grouped(rows)
    high = np.where(low > 0, _extremes(groups)[1], np.maximum(high, 0))
    low = np.minimum(low, 0)
    scales = (high - low) / np.float32(15)
    largest = np.maximum(scales, -low / np.float32(MINIMUM_STEP)).max(axis=1) / np.float32(255)
    units = _fp16(largest / UNIT_STEP)
    units = np.where(units < largest / UNIT_STEP, np.nextafter(units, np.float16(np.inf)), units)
    per_unit = _inverse(units)[:, None] / UNIT_STEP
    s = np.clip(np.rint(scales * per_unit), 1, 255)
    s[units == 0] = 0
    middle = (low + high) * per_unit / 2
    m = np.clip(np.rint((s * np.float32(7.5) - middle) / MINIMUM_STEP), 0, 255)
    q = groups * per_unit[..., None]
    q += MINIMUM_STEP * m[..., None]
    q /= np.maximum(s, 1)[..., None]
    quants = _cut(np.clip(np.rint(q), 0, 15), rows, np.uint8)
    return Quantized(quants, s.astype(np.uint8), m.astype(np.uint8), units)


def _cut(q: Float, rows: Float, kind: type[np.integer[Any]]) -> NDArray[Any]:
    """Quants without the padding of the last group, as integers."""
    return np.ascontiguousarray(q.astype(kind).reshape(len(rows), -1)[:, : rows.shape[1]])


def _inverse(scales: NDArray[np.float16]) -> Float:
    """1 / scale, 0 where the scale is 0."""
    s = scales.astype(np.float32)
    inverse: Float = np.divide(np.float32(1), s, out=np.zeros_like(s), where=s != 0)
    return inverse


def _quants(groups: Float, scales: NDArray[np.float16], minima: NDArray[np.float16]) -> Float:
    q = groups - minima[..., None].astype(np.float32)
    q *= _inverse(scales)[..., None]
    np.rint(q, out=q)
    np.clip(q, 0, 15, out=q)
    return q


def _dequantized(q: Float, scales: NDArray[np.float16], minima: NDArray[np.float16]) -> Float:
    w: Float = q * scales[..., None].astype(np.float32)
    w += minima[..., None].astype(np.float32)
    return w


def _at_most_16_values(groups: Float) -> NDArray[np.bool_]:
    """Whether a group ``[G, 32]`` could lie on 16 levels at all."""
    ordered = np.sort(groups, axis=-1)
    steps: NDArray[np.intp] = np.count_nonzero(ordered[:, 1:] != ordered[:, :-1], axis=-1)
    return steps < 16


def _best_lattice(
    groups: Float, scales: NDArray[np.float16], minima: NDArray[np.float16], q: Float
) -> tuple[NDArray[np.float16], NDArray[np.float16], Float]:
    """Tries the lattices that weights from coarser formats lie on; keeps the closest, ``[G, 32]``.

    The given fit stays where nothing is strictly closer.
    """
    low, high = _extremes(groups)
    peak = np.where(high > -low, high, low)
    tried = [(-peak / np.float32(8), peak)]
    tried += [((high - low) / np.float32(r), low) for r in range(14, 0, -1)]
    error = np.square(_dequantized(q, scales, minima) - groups).sum(axis=-1)
    for candidate_scale, candidate_minimum in tried:
        s, m = _fp16(candidate_scale), _fp16(candidate_minimum)
        candidate = _quants(groups, s, m)
        loss = np.square(_dequantized(candidate, s, m) - groups).sum(axis=-1)
        better = loss < error
        error[better], scales[better], minima[better] = loss[better], s[better], m[better]
        q[better] = candidate[better]
    return scales, minima, q
