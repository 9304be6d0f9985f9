r"""Fits the sketch: a low-rank estimate of the logits W x from calibration inputs x of the head.

    P = the first principal axes of the centred x, [dims, K], int8
    S = W Pᵀ, [N, dims], int4 or int8
    e = S P x + offset,    offset = (W − S P) μ + σ²/2,    σ²_n = (W − S P)_n Cov(x) (W − S P)_nᵀ

S and P stand for what they are after quantisation, so that the mean error is 0 whatever they lost.
σ²_n is the variance of the error of logit n. With the normal error the expected exp(logit) is
exp(e) only with σ²/2 in the estimate (the mean of a log-normal variable): a softmax over estimates
then has the right mass, and tokens that the sketch knows badly are looked at sooner.

Recall is measured on the last fifth of the samples, which the axes do not see; samples come in the
order of the text, so these are of other documents. Candidates are tiles of 16
neighbouring tokens, as the weight lies in memory, ranked by their largest estimate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from tamiz.evaluate import log_softmax
from tamiz.site import Site
from tamiz.statistics import Statistics
from tamiz.technique import Fit, FitError
from tamiz_head_shortlist.config import HeadShortlistConfig
from tamiz_head_shortlist.quantise import GROUP, TILE, pack

#: Chosen tiles are multiplied so many at a time.
_TILES_TOGETHER = 8
_LEAST_SAMPLES = 64
_HEAD_GROUP_BYTES = TILE * (GROUP + 2)  # of an int8 head, a group of one tile
#: Rows of logits in memory at a time, and samples that the divergence is measured on.
_ROWS, _KL_SAMPLES = 64, 256

Float = NDArray[np.float32]


@dataclass(frozen=True)
class Sketch:
    """The estimate e = S P x + offset, packed.

    Attributes:
        project: P, int8.
        sketch: S, in `bits` bits.
        offset: ``[N]``.
        p: P as the op multiplies with it, ``[dims, K]``.
        s: S as the op multiplies with it, ``[N, dims]``.
    """

    project: NDArray[np.uint8]
    sketch: NDArray[np.uint8]
    offset: Float
    p: Float
    s: Float

    def estimate(self, x: Float) -> Float:
        """e ``[S, N]`` of inputs ``[S, K]``."""
        e: Float = (x @ self.p.T) @ self.s.T
        e += self.offset
        return e


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
        ``project``, ``sketch`` and ``offset`` with the attributes of the op HeadShortlist, and
        metrics on held-out samples: ``argmax_recall``, ``top10_recall`` (the fraction of their
        largest, 10 largest logits that is exact), ``kl`` (mean divergence of the softmax with
        estimates from the exact one).

    Raises:
        FitError: There are too few samples, the recall needs so many tiles that nothing is won, or
            weights are not finite or too large.
    """
    samples = 0 if statistics is None else len(statistics.samples)
    if statistics is None or samples < _LEAST_SAMPLES:
        raise FitError(
            f"its sketch is fitted to calibration inputs, expected at least {_LEAST_SAMPLES},"
            f" found {samples}"
        )
    n, k = weight.shape
    weight = np.ascontiguousarray(weight, dtype=np.float32)
    seen, held_out = np.split(statistics.samples.astype(np.float32), [samples - samples // 5])
    sketch = make_sketch(weight, seen, min(config.dims, k), config.sketch_bits)
    if not np.isfinite(sketch.offset).all():
        raise FitError("it holds weights that are not finite, or too large for a sketch")
    tensors = {
        "project": sketch.project,
        "sketch": sketch.sketch,
        "offset": sketch.offset,
    }
    ranks = tile_ranks(weight, sketch, held_out)
    tiles = _tiles(config, ranks[:, 0], n, k, tensors["sketch"].nbytes)
    every = -(-len(held_out) // _KL_SAMPLES)
    return Fit(
        tensors=tensors,
        attributes={
            "dims": min(config.dims, k),
            "sketch_bits": config.sketch_bits,
            "tiles": tiles,
            "rows": config.rows,
            "estimate": int(config.fill == "estimate"),
        },
        metrics={
            "argmax_recall": float((ranks[:, 0] < tiles).mean()),
            "top10_recall": float((ranks < tiles).mean()),
            "kl": divergence(weight, sketch, held_out[::every], tiles),
        },
        bits_per_weight=8 * sum(tensor.nbytes for tensor in tensors.values()) / (n * k),
    )


def _tiles(
    config: HeadShortlistConfig, ranks: NDArray[np.int64], n: int, k: int, sketch_bytes: int
) -> int:
    """How many tiles are exact, in whole steps of the kernel: see `HeadShortlistConfig.keep`.

    Raises:
        FitError: The recall needs so many that they and the sketch are no less to read than an
            int8 head.
    """
    total = -(-n // TILE)
    if config.keep is not None:
        return min(-(-config.keep // TILE), total)
    wanted = int(np.ceil(config.recall * len(ranks)))
    least = int(np.sort(ranks)[wanted - 1]) + 1
    tiles = -(-least // _TILES_TOGETHER) * _TILES_TOGETHER
    if (total - tiles) * _HEAD_GROUP_BYTES * -(-k // GROUP) <= sketch_bytes:
        raise FitError(
            f"an argmax recall of {config.recall:g} needs {min(tiles, total)} of its {total}"
            " tiles, so that a shortlist saves nothing"
        )
    return tiles


def make_sketch(weight: Float, x: Float, dims: int, bits: int) -> Sketch:
    """The sketch of ``[N, K]`` that the inputs ``[S, K]`` call for."""
    mean = x.mean(axis=0, dtype=np.float64)
    centred = x - mean
    covariance = centred.T @ centred / len(x)
    variances, axes = np.linalg.eigh(covariance)
    project = pack(np.ascontiguousarray(axes[:, ::-1].T[:dims], np.float32), 8)
    p = tamiz_ops.dequantize(project, 8, dims, x.shape[1])
    sketch = pack(weight @ p.T, bits)
    s = tamiz_ops.dequantize(sketch, bits, len(weight), dims)
    root = (axes * np.sqrt(np.maximum(variances, 0))).astype(np.float32)
    offset = np.empty(len(weight), np.float32)
    for start in range(0, len(weight), _ROWS * TILE):
        rows = slice(start, start + _ROWS * TILE)
        error = weight[rows] - s[rows] @ p
        offset[rows] = error @ mean + np.square(error @ root).sum(axis=1) / 2
    return Sketch(project, sketch, offset, p, s)


def tile_ranks(weight: Float, sketch: Sketch, x: Float) -> NDArray[np.int64]:
    """How many tiles the sketch puts before those of the 10 largest logits, ``[S, 10]``.

    Sorted by logit, the largest first. Of equal tiles the lower one comes first.
    """
    ranks = []
    for exact, estimates in _logits(weight, sketch, x):
        top = np.argsort(-exact, axis=1, kind="stable")[:, :10] // TILE
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
