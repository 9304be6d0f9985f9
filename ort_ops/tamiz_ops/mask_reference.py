"""Ops that choose which blocks of an input count, in NumPy and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.signs import unpack_sign_words

Array = npt.NDArray[Any]


def kwta_mask(
    x: Array,
    weight: Array | None = None,
    position_ids: Array | None = None,
    candidates: Array | None = None,
    center: Array | None = None,
    slope: Array | None = None,
    shifted_bias: Array | None = None,
    plain_bias: Array | None = None,
    without: Array | None = None,
    *,
    block: int = 1,
    threshold: float = 0.0,
    keep: int = 0,
    duty: int = 1,
    first: int = 4,
    renorm: int = 0,
    offset: float = 0.0,
    range: float = 2.0,
) -> list[Array]:
    """score = |x of a block|_2 * weight; kept where score >= threshold, or the `keep` largest.

    With `slope` the threshold of a token is threshold * exp(-(x . slope + offset)), within a factor
    of `range`. With `renorm` the centred x is multiplied by blocks / winners. Switched off by
    `without` it gives all candidates, x and the plain bias; without `shifted_bias`, which would
    belong to the centred x, that stays centred.
    """
    k = x.shape[-1]
    if off := without is not None and without[0] != 0:
        center, renorm = center if shifted_bias is None else None, 0
    centred = x.astype(np.float64) - (0 if center is None else center)
    padded = np.pad(centred, [(0, 0)] * (x.ndim - 1) + [(0, -k % block)])
    scores = np.sqrt(np.square(padded.reshape(*x.shape[:-1], -1, block)).sum(axis=-1))
    scores *= 1 if weight is None else weight
    allowed = np.ones(scores.shape, bool) if candidates is None else candidates != 0
    if keep:
        ranked = np.argsort(np.where(allowed, -scores, np.inf), axis=-1, kind="stable")
        kept = np.zeros(scores.shape, bool)
        np.put_along_axis(kept, ranked[..., :keep], True, axis=-1)
    else:
        least = np.full((*x.shape[:-1], 1), threshold, np.float64)
        if slope is not None:
            predicted = x.astype(np.float64) @ slope.astype(np.float64) + offset
            predicted = np.clip(
                np.where(np.isnan(predicted), 0, predicted), -np.log(range), np.log(range)
            )
            least *= np.exp(-predicted)[..., np.newaxis]
        kept = scores >= least
    if position_ids is not None:
        kept |= ((position_ids < first) | (position_ids % duty != 0))[..., np.newaxis]
    winners = ((kept | off) & allowed).astype(np.uint8)
    if renorm:
        centred = centred * (kept.shape[-1] / np.maximum(winners.sum(axis=-1, keepdims=True), 1))
    bias = plain_bias if off else shifted_bias
    if bias is None:
        bias = np.zeros(0 if shifted_bias is None else shifted_bias.shape, np.float32)
    return [winners, centred, bias]


def zero_mask(
    x: Array,
    candidates: Array | None = None,
    without: Array | None = None,
    *,
    block: int = 1,
    epsilon: float = 0.0,
    density: float = 1.0,
) -> list[Array]:
    """Of the candidates the blocks with |x|_2 > epsilon; all where these are too many.

    All candidates, too, where `without` switches it off.
    """
    k = x.shape[-1]
    padded = np.pad(x.astype(np.float64), [(0, 0)] * (x.ndim - 1) + [(0, -k % block)])
    sizes = np.sqrt(np.square(padded.reshape(*x.shape[:-1], -1, block)).sum(axis=-1))
    allowed = np.ones(sizes.shape, bool) if candidates is None else candidates != 0
    kept = allowed & ~(sizes <= np.float32(epsilon))
    sparse = kept.sum(axis=-1, keepdims=True) <= density * kept.shape[-1]
    sparse &= without is None or without[0] == 0
    return [np.where(sparse, kept, allowed).astype(np.uint8)]


def sign_mask(
    x: Array,
    signs: Array,
    limits: Array,
    center: Array | None = None,
    without: Array | None = None,
    *,
    n: int,
    k: int,
    planes: int = 1,
    step: float = 1.0,
) -> list[Array]:
    """Outputs with ½ Σ_i (2^planes − 1 − sign(w_oi) q_i) ≤ limit, q_i odd: the level of x_i.

    All outputs where `without` switches it off.
    """
    centered = x if center is None else x - center
    half = 2 ** (planes - 1)
    edges = np.arange(1 - half, half, dtype=np.float32) * np.float32(step)
    q = 2 * (centered[..., None] > edges).sum(axis=-1) + 1 - 2 * half
    agreement = q @ unpack_sign_words(signs, n, k).T.astype(np.int64)
    kept = ((2 * half - 1) * k - agreement) // 2 <= limits
    return [(kept | bool(without is not None and without[0])).astype(np.uint8)]
