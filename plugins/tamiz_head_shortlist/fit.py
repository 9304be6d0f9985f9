"""Fits the sketch to calibration inputs, and chooses how many tiles are refined and exact.

Recall is measured on the last fifth of the samples of every text that was calibrated on; the axes
do not see these, and samples come in the order of the text, so they are of other documents. What
is asked for has to hold on every text. Candidates are tiles of 16 neighbouring tokens, as the
weight lies in memory, ranked by their largest estimate; those that are refined are ranked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamiz.api import Fit, FitError, Site, Statistics
from tamiz_head_shortlist.config import HeadShortlistConfig
from tamiz_head_shortlist.quantize import refined_tiles
from tamiz_head_shortlist.sketch import Sketch, make_sketch
from tamiz_ops.formats import TILE, int_format

#: Chosen tiles are multiplied so many at a time.
_TILES_TOGETHER = 8
_LEAST_SAMPLES = 64
#: Rows of logits in memory at a time.
_ROWS = 128

Float = NDArray[np.float32]


def fit(
    site: Site, weight: Float, statistics: Statistics | None, config: HeadShortlistConfig
) -> Fit:
    """Fits the sketch of a head and chooses how many tiles are exact.

    Args:
        site: The head.
        weight: float32 ``[N, K]``.
        statistics: Samples of the head's input.
        config: Sizes, and the required recall.

    Returns:
        The sketch's tensors with the attributes of the op HeadShortlist, and metrics on held-out
        samples: ``argmax_recall``, ``top10_recall`` (the fraction of their largest, 10 largest
        logits that is exact), ``kl`` (mean divergence of the softmax with estimates from the exact
        one, of the worst text), and the argmax recall on each text.

    Raises:
        FitError: There are too few samples, the weight is not finite, or the recall needs so many
            tiles that nothing is won.
    """
    n, k = weight.shape
    if site.logit_cap and config.fill == "-inf":
        raise FitError(
            f"its logits are soft-capped at {site.logit_cap:g}, so that none can be minus infinity;"
            " try fill=estimate in a policy"
        )
    weight = np.ascontiguousarray(weight, dtype=np.float32)
    statistics_of_input = _enough(statistics)
    seen, inputs = _split(statistics_of_input)
    dims = min(config.dims, k)
    sketch = make_sketch(weight, seen, dims, config.sketch_bits)
    if not all(np.isfinite(t).all() for t in sketch.tensors.values() if t.dtype == np.float32):
        raise FitError("its weight holds numbers that are not finite or too large for a sketch")
    measured, tiles = _choose(config, weight, sketch, inputs, site.logit_cap)
    every = np.concatenate([text.ranks for text in measured.values()])
    stored = sum(tensor.nbytes for tensor in sketch.tensors.values())
    recalls = {
        f"argmax_recall of {name}": float((text.ranks[:, 0] < tiles).mean())
        for name, text in measured.items()
    }
    return Fit(
        tensors=sketch.tensors,
        attributes={
            "dims": dims,
            "sketch_bits": config.sketch_bits,
            "sign_dims": k - dims,
            "refined": _refined(measured),
            "tiles": tiles,
            "rows": config.rows,
            "estimate": int(config.fill == "estimate"),
        },
        metrics={
            "argmax_recall": float((every[:, 0] < tiles).mean()),
            "top10_recall": float((every < tiles).mean()),
            "kl": float(_divergences(measured)[tiles]),
            **(recalls if statistics_of_input.origins is not None else {}),
        },
        bits_per_weight=8 * stored / (n * k),
    )


def _enough(statistics: Statistics | None) -> Statistics:
    """The statistics, with as many samples as a sketch needs."""
    samples = 0 if statistics is None else len(statistics.samples)
    if statistics is None or samples < _LEAST_SAMPLES:
        raise FitError(
            f"its sketch is fitted to calibration inputs, expected at least {_LEAST_SAMPLES},"
            f" found {samples}"
        )
    return statistics


def _split(statistics: Statistics) -> tuple[Float, dict[str, Float]]:
    """The samples to fit to, and by text those that are held out."""
    texts = _last_fifths(statistics)
    x = statistics.samples.astype(np.float32)
    seen = np.ones(len(x), bool)
    seen[np.concatenate(list(texts.values()))] = False
    return x[seen], {name: x[rows] for name, rows in texts.items()}


def _last_fifths(statistics: Statistics) -> dict[str, NDArray[np.int64]]:
    """Numbers of the held-out samples of every text."""
    origins = statistics.origins
    if origins is None:
        origins = np.full(len(statistics.samples), "the text")
    texts = {str(name): np.flatnonzero(origins == name) for name in dict.fromkeys(origins.tolist())}
    return {name: rows[len(rows) - -(-len(rows) // 5) :] for name, rows in texts.items()}


@dataclass(frozen=True)
class Measured:
    """How a sketch does on a text, with a number of refined tiles.

    Attributes:
        ranks: How many refined tiles come before those of the 10 largest logits, ``[S, 10]``, the
            largest logit first; N for a tile that is not refined.
        divergences: Mean KL divergence of the softmax of a step from the exact one, with 0, 1, 2, …
            exact tiles, ``[refined + 1]``.
    """

    ranks: NDArray[np.int64]
    divergences: NDArray[np.float64]


def _choose(
    config: HeadShortlistConfig,
    weight: Float,
    sketch: Sketch,
    inputs: Mapping[str, Float],
    logit_cap: float,
) -> tuple[dict[str, Measured], int]:
    """What is measured on every text, and how many tiles are exact; see `HeadShortlistConfig`.

    Raises:
        FitError: So many that they and the sketch are no less to read than an int8 head.
    """
    n, k = weight.shape
    total = -(-n // TILE)

    def measure(counts: Sequence[int]) -> list[dict[str, Measured]]:
        """At several numbers of refined tiles; logits and estimates are computed once."""
        by_text = {
            name: _measure(weight, sketch, x, counts, logit_cap) for name, x in inputs.items()
        }
        return [
            {name: measured[i] for name, measured in by_text.items()} for i in range(len(counts))
        ]

    if config.keep is not None:
        tiles = min(-(-config.keep // TILE), total)
        return measure([max(refined_tiles(total), tiles)])[0], tiles
    read = sum(t.nbytes for name, t in sketch.tensors.items() if name != "refinement")
    most = total - read // int_format(8).tile_bytes(k)
    counts = [refined_tiles(total)]
    while counts[-1] < most:
        counts.append(min(2 * counts[-1], total))
    # The first number mostly does. The others are measured in one more pass, as each costs less
    # than the logits.
    for tried in filter(None, (counts[:1], counts[1:])):
        for refined, measured in zip(tried, measure(tried), strict=True):
            tiles = _least_tiles(config, measured)
            if tiles < min(refined, most):
                return measured, tiles
    raise FitError(
        f"an argmax recall of {config.recall:g} with a divergence of {config.kl:g} needs"
        f" {min(tiles, total)} of its {total} tiles, so that a shortlist saves nothing"
    )


def _least_tiles(config: HeadShortlistConfig, measured: Mapping[str, Measured]) -> int:
    """In whole steps of the kernel; more than are refined where these do not do."""
    tiles = 1
    for text in measured.values():
        ranks = np.sort(text.ranks[:, 0])
        tiles = max(tiles, int(ranks[int(np.ceil(config.recall * len(ranks))) - 1]) + 1)
    if config.fill == "estimate":
        enough = np.flatnonzero(_divergences(measured) <= config.kl)
        tiles = max(tiles, int(enough[0]) if len(enough) else _refined(measured) + 1)
    return -(-tiles // _TILES_TOGETHER) * _TILES_TOGETHER


def _refined(measured: Mapping[str, Measured]) -> int:
    return len(_divergences(measured)) - 1


def _divergences(measured: Mapping[str, Measured]) -> NDArray[np.float64]:
    """Of the worst text at every number of exact tiles."""
    worst: NDArray[np.float64] = np.max([text.divergences for text in measured.values()], axis=0)
    return worst


def _capped(y: Float, cap: float) -> Float:
    """The logits that the head's outputs become: c · tanh(y / c), which keeps their order."""
    return np.float32(cap) * np.tanh(y / np.float32(cap)) if cap else y


def _measure(
    weight: Float, sketch: Sketch, x: Float, counts: Sequence[int], logit_cap: float
) -> list[Measured]:
    """How the sketch does on inputs, with each of some numbers of refined tiles."""
    ranks: list[list[NDArray[np.int64]]] = [[] for _ in counts]
    divergences = [np.zeros(refined + 1) for refined in counts]
    for start in range(0, len(x), _ROWS):
        rows = x[start : start + _ROWS]
        exact = _capped(rows @ weight.T, logit_cap)
        coarse, fine = (_capped(y, logit_cap) for y in sketch.estimate(rows))
        by_coarse, maxima_of_fine = _order(coarse), _tile_maxima(fine)
        for i, refined in enumerate(counts):
            kept = by_coarse[:, :refined]
            maxima = np.full_like(maxima_of_fine, -np.inf)
            best = np.take_along_axis(maxima_of_fine, kept, axis=1)
            np.put_along_axis(maxima, kept, best, axis=1)
            order = np.argsort(-maxima, axis=1, kind="stable")[:, :refined]
            ranks[i].append(_ranks_of_largest(exact, order))
            is_refined = np.repeat(np.isfinite(maxima), TILE, axis=1)[:, : exact.shape[1]]
            estimates = np.where(is_refined, fine, coarse)
            divergences[i] += _summed_divergences(exact, estimates, order)
    pairs = zip(ranks, divergences, strict=True)
    return [
        Measured(np.concatenate(ranks_of_part), summed / len(x)) for ranks_of_part, summed in pairs
    ]


def _ranks_of_largest(exact: Float, order: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the tiles of the 10 largest logits stand in `order`, ``[rows, 10]``; N: nowhere."""
    count = min(10, exact.shape[1])
    top = np.argpartition(-exact, count - 1, axis=1)[:, :count]
    largest = np.argsort(-np.take_along_axis(exact, top, axis=1), axis=1, kind="stable")
    ranks = np.full((len(exact), -(-exact.shape[1] // TILE)), exact.shape[1])
    np.put_along_axis(ranks, order, np.arange(order.shape[1])[None], axis=1)
    rank_of_exact: NDArray[np.int64] = np.take_along_axis(
        ranks, np.take_along_axis(top, largest, axis=1) // TILE, axis=1
    )
    return rank_of_exact


def _summed_divergences(
    exact: Float, estimates: Float, order: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Σ over rows of KL(p ‖ q), q with the first 0, 1, 2, … tiles of `order` exact.

    With y the exact logits, e the estimates, and Z = Σ exp of what a softmax is made of,
    KL = Σ p (y − e) over the tiles that are not exact + log Z_q − log Z_p.
    """
    largest = exact.max(axis=1, keepdims=True)
    p, q = np.exp(exact - largest), np.exp(estimates - largest)
    whole = p.sum(axis=1, keepdims=True, dtype=np.float64)
    errors = _tile_sums(p * (exact - estimates)) / whole
    masses = _tile_sums(p - q)

    def left(sums: NDArray[np.float64], start: NDArray[np.float64]) -> NDArray[np.float64]:
        steps = np.cumsum(np.take_along_axis(sums, order, axis=1), axis=1)
        return np.concatenate([start, start + steps], axis=1)

    remaining = left(-errors, errors.sum(axis=1, keepdims=True))
    z = left(masses, q.sum(axis=1, keepdims=True, dtype=np.float64))
    summed: NDArray[np.float64] = (remaining + np.log(z / whole)).sum(axis=0)
    return summed


def _order(logits: Float) -> NDArray[np.int64]:
    """Tiles by their largest logit; of equal ones the lower comes first."""
    return np.argsort(-_tile_maxima(logits), axis=1, kind="stable")


def _tiles(logits: Float, padding: float) -> Float:
    padded = np.pad(logits, ((0, 0), (0, -logits.shape[1] % TILE)), constant_values=padding)
    return padded.reshape(len(logits), -1, TILE)


def _tile_maxima(logits: Float) -> Float:
    maxima: Float = _tiles(logits, -np.inf).max(axis=-1)
    return maxima


def _tile_sums(values: Float) -> NDArray[np.float64]:
    sums: NDArray[np.float64] = _tiles(values, 0).sum(axis=-1, dtype=np.float64)
    return sums
