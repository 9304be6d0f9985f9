"""Fits the sketch to calibration inputs, and chooses how many tiles are exact.

Recall is measured on the last fifth of the samples of every text that was calibrated on; the axes
do not see these, and samples come in the order of the text, so they are of other documents. What
is asked for has to hold on every text. Candidates are tiles of 16 neighbouring tokens,
as the weight lies in memory, ranked by their largest estimate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluate import log_softmax
from tamiz.site import Site
from tamiz.statistics import Statistics
from tamiz.technique import Fit, FitError
from tamiz_head_shortlist.config import HeadShortlistConfig
from tamiz_head_shortlist.quantise import GROUP, TILE
from tamiz_head_shortlist.sketch import Sketch, make_sketch

#: Chosen tiles are multiplied so many at a time.
_TILES_TOGETHER = 8
_LEAST_SAMPLES = 64
_HEAD_GROUP_BYTES = TILE * (GROUP + 2)  # of an int8 head, a group of one tile
#: Rows of logits in memory at a time, and samples of a text that the divergence is measured on.
_ROWS, _KL_SAMPLES = 64, 128

Float = NDArray[np.float32]


def fit(
    site: Site, weight: Float, statistics: Statistics | None, config: HeadShortlistConfig
) -> Fit:
    """Fits the sketch of a head and chooses how many tiles are exact.

    Args:
        site: The head.
        weight: float32 ``[N, K]``.
        statistics: Samples of the head's input.
        config: Sizes, and the recall that is asked for.

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
    weight = np.ascontiguousarray(weight, dtype=np.float32)
    known = _enough(statistics)
    seen, inputs = _split(known)
    dims = min(config.dims, k)
    planes = config.planes if dims < k else 0
    sketch = make_sketch(weight, seen, dims, config.sketch_bits, planes)
    if not all(np.isfinite(t).all() for t in sketch.tensors.values() if t.dtype == np.float32):
        raise FitError("its weight holds numbers that are not finite or too large for a sketch")
    ranks = {name: tile_ranks(weight, sketch, part) for name, part in inputs.items()}
    tiles = _tiles(config, weight, sketch, inputs, ranks)
    every = np.concatenate(list(ranks.values()))
    stored = sum(tensor.nbytes for tensor in sketch.tensors.values())
    recalls = {
        f"argmax_recall of {name}": float((r[:, 0] < tiles).mean()) for name, r in ranks.items()
    }
    return Fit(
        tensors=sketch.tensors,
        attributes={
            "dims": dims,
            "sketch_bits": config.sketch_bits,
            "planes": planes,
            "sign_dims": k - dims if planes else 0,
            "tiles": tiles,
            "rows": config.rows,
            "estimate": int(config.fill == "estimate"),
        },
        metrics={
            "argmax_recall": float((every[:, 0] < tiles).mean()),
            "top10_recall": float((every < tiles).mean()),
            "kl": _worst_divergence(weight, sketch, inputs, tiles),
            **(recalls if known.origins is not None else {}),
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


def _tiles(
    config: HeadShortlistConfig,
    weight: Float,
    sketch: Sketch,
    inputs: Mapping[str, Float],
    ranks: Mapping[str, NDArray[np.int64]],
) -> int:
    """How many tiles are exact, in whole steps of the kernel; see `HeadShortlistConfig`.

    Raises:
        FitError: So many that they and the sketch are no less to read than an int8 head.
    """
    n, k = weight.shape
    total = -(-n // TILE)
    if config.keep is not None:
        return min(-(-config.keep // TILE), total)
    tile_bytes = _HEAD_GROUP_BYTES * -(-k // GROUP)
    most = total - sum(tensor.nbytes for tensor in sketch.tensors.values()) // tile_bytes
    tiles = max(_tiles_for_recall(found[:, 0], config.recall) for found in ranks.values())
    if config.fill == "estimate":
        while tiles < most and _worst_divergence(weight, sketch, inputs, tiles) > config.kl:
            tiles = _whole_steps(tiles * 3 // 2)
    if tiles >= most:
        raise FitError(
            f"an argmax recall of {config.recall:g} with a divergence of {config.kl:g} needs"
            f" {min(tiles, total)} of its {total} tiles, so that a shortlist saves nothing"
        )
    return tiles


def _tiles_for_recall(ranks: NDArray[np.int64], recall: float) -> int:
    wanted = int(np.ceil(recall * len(ranks)))
    return _whole_steps(int(np.sort(ranks)[wanted - 1]) + 1)


def _whole_steps(tiles: int) -> int:
    return -(-tiles // _TILES_TOGETHER) * _TILES_TOGETHER


def _worst_divergence(
    weight: Float, sketch: Sketch, inputs: Mapping[str, Float], tiles: int
) -> float:
    """The largest of the texts, each measured on some samples."""
    return max(
        divergence(weight, sketch, x[:: -(-len(x) // _KL_SAMPLES)], tiles) for x in inputs.values()
    )


def tile_ranks(weight: Float, sketch: Sketch, x: Float) -> NDArray[np.int64]:
    """How many tiles the sketch puts before those of the 10 largest logits, ``[S, 10]``.

    Sorted by logit, the largest first. Of equal tiles the lower one comes first.
    """
    ranks = []
    for exact, estimates in _logits(weight, sketch, x):
        count = min(10, exact.shape[1])
        top = np.argpartition(-exact, count - 1, axis=1)[:, :count]
        largest = np.argsort(-np.take_along_axis(exact, top, axis=1), axis=1, kind="stable")
        top = np.take_along_axis(top, largest, axis=1) // TILE
        order = np.argsort(-_tile_maxima(estimates), axis=1, kind="stable")
        position = np.empty_like(order)
        np.put_along_axis(position, order, np.arange(order.shape[1])[None], axis=1)
        ranks.append(np.take_along_axis(position, top, axis=1))
    return np.concatenate(ranks)


def divergence(weight: Float, sketch: Sketch, x: Float, tiles: int) -> float:
    """Mean of Σ p (log p − log q): p of the exact logits, q with estimates outside of `tiles`."""
    total = 0.0
    for exact, estimates in _logits(weight, sketch, x):
        order = np.argsort(-_tile_maxima(estimates), axis=1, kind="stable")
        chosen = np.zeros(order.shape, bool)
        np.put_along_axis(chosen, order[:, :tiles], True, axis=1)
        mixed = np.where(np.repeat(chosen, TILE, axis=1)[:, : exact.shape[1]], exact, estimates)
        log_p, log_q = log_softmax(exact), log_softmax(mixed)
        total += float((np.exp(log_p) * (log_p - log_q)).sum())
    return total / len(x)


def _logits(weight: Float, sketch: Sketch, x: Float) -> Iterator[tuple[Float, Float]]:
    """Exact and estimated logits ``[rows, N]``, some rows at a time."""
    for start in range(0, len(x), _ROWS):
        rows = x[start : start + _ROWS]
        yield rows @ weight.T, sketch.estimate(rows)


def _tile_maxima(logits: Float) -> Float:
    padding = -logits.shape[1] % TILE
    padded = np.pad(logits, ((0, 0), (0, padding)), constant_values=-np.inf)
    maxima: Float = padded.reshape(len(logits), -1, TILE).max(axis=-1)
    return maxima
