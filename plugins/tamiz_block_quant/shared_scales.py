"""Fits int8 to groups of 128 weights along the input.

w ≈ scale · q,  q = round(w / scale) in −127..127,  scale = max |w| / 127 in fp16

The packed weight is that of groups of 32 inputs, whose scales come in fours; the kernels then add
the products of 128 inputs as integers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from tamiz.api import Fit, FitError, Site
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_ops.formats import GROUP

_MOST = float(np.finfo(np.float16).max)


def fit_shared(site: Site, weight: NDArray[np.float32], config: BlockQuantConfig) -> Fit:
    """Fits and packs one weight ``[N, K]``; its metrics are ``rel_l2`` and ``exact``.

    Raises:
        FitError: The weight has 4 bits, is not finite, or needs a scale outside of fp16's range.
    """
    if config.format is None and config.bits_at(site) != 8:
        raise FitError("128 inputs share a scale in weights of 8 bits; try --block-quant-bits=8")
    if not np.isfinite(weight).all():
        raise FitError("it holds weights that are not finite")
    (n, k), inputs = weight.shape, config.scale_inputs
    groups = np.pad(weight, ((0, 0), (0, -k % inputs))).reshape(n, -1, inputs)
    largest = np.abs(groups).max(axis=2, keepdims=True) / np.float32(127)
    if largest.max(initial=0.0) > _MOST:
        raise FitError(f"a group needs a scale above {_MOST:.0f}, fp16's largest")
    scales = largest.astype(np.float16)
    s = scales.astype(np.float32)
    inverse = np.divide(np.float32(1), s, out=np.zeros_like(s), where=s != 0)
    quants = np.clip(np.rint(groups * inverse), -127, 127)
    lost = (groups - quants * s).reshape(n, -1)[:, :k]
    rows = np.ascontiguousarray(quants.astype(np.int8).reshape(n, -1)[:, :k])
    repeated = np.repeat(scales[:, :, 0], inputs // GROUP, axis=1)[:, : -(-k // GROUP)]
    packed = tamiz_ops.pack_int8(rows, np.ascontiguousarray(repeated))
    norm = np.linalg.norm(weight)
    metrics = {
        "rel_l2": float(np.linalg.norm(lost) / norm) if norm else 0.0,
        "exact": float(not lost.any()),
    }
    attributes = {"bits": 8, "n": n, "k": k, "scale_inputs": inputs}
    return Fit({"weight": packed}, attributes, metrics, 8 * packed.nbytes / (n * k))
