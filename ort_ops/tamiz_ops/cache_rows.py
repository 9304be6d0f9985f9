"""Keys and values as the cache of tamiz.Attention holds them where cache_bits is 8, and how what
meets them is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: Rows of a page of the cache, and keys whose weights are rounded together.
PAGE = 64


def pack_rows(x: Array) -> Array:
    """Rows of the cache for keys or values of 8 bits: q = round(x / s), s = max |x| / 127.

    Args:
        x: float32 [.., dim], dim a multiple of 4.

    Returns:
        float32 [.., dim / 4 + 1]: four q in a float's place, and then s. Both are 0 where s would
        be no normal float; q is 0 and s NaN where x is not finite.
    """
    q, scale = rounded(x, 127)
    words = np.ascontiguousarray(q.astype(np.int8)).view(np.float32)
    return np.concatenate([words, scale], axis=-1)


def rounded(x: Array, steps: int) -> tuple[Array, Array]:
    """q = round(x / s) [.., dim] and s = max |x| / steps [.., 1], as in `pack_rows`."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(steps)
    finite = np.isfinite(x).all(axis=-1, keepdims=True)
    usable = finite & (scale >= np.finfo(np.float32).tiny)
    q = np.where(usable, np.round(np.divide(x, scale, where=usable, out=np.zeros_like(x))), 0)
    return q, np.where(usable, scale, np.where(finite, 0, np.nan)).astype(np.float32)


def unpack_rows(rows: Array) -> Array:
    """s q, float64 [.., dim], of the rows that `pack_rows` makes."""
    words, scale = np.ascontiguousarray(rows[..., :-1]), rows[..., -1:]
    return words.view(np.int8).astype(np.float64) * scale


def round_queries(x: Array) -> Array:
    """Queries [.., dim] as they meet bytes: u round(x / u) with u = max |x| / 32767."""
    return _nearest(x, 32767)


def round_weights(weight: Array, scale: Array, block: Array) -> Array:
    """Weights of a softmax as they meet bytes: u round(w s / u) / s.

    Args:
        weight: [keys].
        scale: s of the values, [keys].
        block: the block of each key, [keys]; u is the largest w s of a block / 255.
    """
    met: Array = weight * scale
    for one in np.unique(block):
        met[block == one] = _nearest(met[block == one], 255)
    back: Array = np.where(scale, scale, 1)
    return met / back


def _nearest(x: Array, steps: int) -> Array:
    q, unit = rounded(x, steps)
    nearest: Array = q * unit
    return nearest
