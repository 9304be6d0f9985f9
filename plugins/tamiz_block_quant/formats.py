r"""Fits a weight to any named format: nearest, search or with error feedback.

nearest:  scales and minima from the extremes of each group;
search:   minimise Σ_k m_k (w_k − ŵ_k)²,  m = mean of x_k², over scales, minima and quants;
gptq:     minimise (w − ŵ)ᵀ H (w − ŵ),    H = (1 − λ) E[x xᵀ] + λ diag(m), with feedback
          (`tamiz_ops.formats.fit_with_feedback`).

E[x xᵀ] is the calibration samples' own; λ diag(m) stands in for what few samples cannot tell. A
head that shares its weight with an embedding adds β · mean(m) to the diagonal, for the rows that
the embedding looks up; an embedding alone is searched with all m alike. Each expert is searched
with the m of the tokens that took it; experts have no samples, so they are never fitted by gptq.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tamiz.api import Fit, FitError, Site, SiteKind, Statistics
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.factors import factor
from tamiz_ops import formats

Float = NDArray[np.float32]

_CHUNK = 1 << 20  # weights that are decoded at a time
#: β of a weight that is looked up as well.
_LOOKED_UP = 0.1


def fit_format(
    site: Site, weight: Float, statistics: Statistics | None, config: BlockQuantConfig
) -> Fit:
    """Packs one weight in the format that `config` names at `site`.

    Raises:
        FitError: The format cannot hold the weight, or gptq has no calibration.
    """
    (n, k), format = weight.shape, config.format_at(site)
    if k % format.block:
        raise FitError(f"{format.name} stores blocks of {format.block} inputs, but it has {k}")
    try:
        packed = _packed(site, format, weight, statistics, config)
    except ValueError as refused:
        raise FitError(str(refused)) from refused
    error = norm = 0.0
    for rows in _row_chunks(n, k):
        lost = weight[rows] - formats.dequantize(format, packed, n, k, rows)
        error += float(np.einsum("nk,nk->", lost, lost, dtype=np.float64))
        norm += float(np.einsum("nk,nk->", weight[rows], weight[rows], dtype=np.float64))
    metrics = {"rel_l2": float(np.sqrt(error / norm)) if norm else 0.0, "exact": float(error == 0)}
    attributes = {"format": format.name, "n": n, "k": k}
    return Fit({"weight": packed}, attributes, metrics, 8 * packed.nbytes / (n * k))


def _packed(
    site: Site,
    format: formats.Format,
    weight: Float,
    statistics: Statistics | None,
    config: BlockQuantConfig,
) -> NDArray[np.uint8]:
    """Packs a weight. One that is only looked up has no inputs, and is searched; so are experts."""
    looked_up = _LOOKED_UP if site.shared else 0.0
    sampled = statistics is not None and len(statistics.samples) > 0
    fit = config.fit or ("gptq" if sampled else "search")
    if fit == "gptq" and site.kind in (SiteKind.EMBEDDING, SiteKind.EXPERTS) and not sampled:
        fit = "search"
    if fit != "gptq" and statistics is not None and statistics.experts is not None:
        return _each_expert(format, weight, statistics.experts.imatrix, fit == "search")
    if fit != "gptq":
        importance = None
        if statistics is not None:
            importance = statistics.imatrix + looked_up * statistics.imatrix.mean()
        return formats.quantize(format, weight, importance, search=fit == "search")
    if statistics is None or not sampled:
        raise FitError("gptq needs the samples of a calibration of the site's input")
    return formats.quantize_with_feedback(format, weight, factor(statistics, looked_up))


def _each_expert(
    format: formats.Format, weight: Float, importance: Float, search: bool
) -> NDArray[np.uint8]:
    """Packs each expert with what its own inputs were, ``[E, K]``."""
    of_each = zip(np.split(weight, len(importance)), importance, strict=True)
    packed = [formats.quantize(format, rows, own, search=search) for rows, own in of_each]
    return np.concatenate(packed)


def _row_chunks(n: int, k: int) -> Iterator[slice]:
    step = formats.TILE * max(1, _CHUNK // (formats.TILE * k))
    for start in range(0, n, step):
        yield slice(start, min(n, start + step))
