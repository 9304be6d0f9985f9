"""Which row of a table stands for the distance of two tokens: buckets, wider with the distance."""

from __future__ import annotations

import math

import numpy as np


def t5_buckets(longest: int, buckets: int, farthest: int) -> np.ndarray:
    """Buckets of T5 and MPNet (Raffel et al. 2020).

    Half of the buckets are for keys behind the query; of each half the first half are exact
    distances, the others grow up to the farthest.

    Args:
        longest: L, tokens of a text at most.
        buckets: Their number.
        farthest: Distance from which on all are in the last bucket; above a quarter of `buckets`.

    Returns:
        ``int64 [2·L - 1]``, by key - query + L - 1.
    """
    key_behind = np.arange(1 - longest, longest)
    half = buckets // 2
    exact = half // 2
    far = np.abs(key_behind)
    with np.errstate(divide="ignore"):
        grown = np.log(far.astype(np.float32) / np.float32(exact))
        grown = grown / np.float32(math.log(farthest / exact)) * np.float32(half - exact)
    grown = np.minimum(exact + np.maximum(grown, 0).astype(np.int64), half - 1)
    found: np.ndarray = np.where(far < exact, far, grown) + half * (key_behind > 0)
    return found


def deberta_buckets(longest: int, buckets: int, most: int) -> np.ndarray:
    """Buckets of DeBERTa-v2 (He et al. 2021): exact up to half of them, then by the logarithm.

    Args:
        longest: L, tokens of a text at most.
        buckets: Their number on one side; 0 for exact distances.
        most: Longest distance; rows on one side where there are no buckets.

    Returns:
        ``int64 [2·L - 1]``: rows by query - key + L - 1.
    """
    distance = np.arange(1 - longest, longest)
    span = buckets or most
    if buckets and most > 0:
        middle = buckets // 2
        far = np.where(np.abs(distance) < middle, middle - 1, np.abs(distance))
        of_logs = np.log((far / middle).astype(np.float32))
        of_logs = of_logs / np.log(np.float32((most - 1) / middle)) * np.float32(middle - 1)
        grown = (np.ceil(of_logs) + middle) * np.sign(distance)
        distance = np.where(far <= middle, distance, grown).astype(np.int64)
    return np.clip(distance + span, 0, 2 * span - 1)
