"""What a decoder adds to its scores by the distance of query i and key j (ALiBi).

    score_ij = q_i · k_j + slope_h · (j - i)

A graph may add slope_h · j instead: softmax takes a constant of the query away.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tamiz_passes.attention_cases import CASES, case_of, has_hole, visible
from tamiz_passes.distance_bias import longest
from tamiz_passes.probe import Case
from tamiz_passes.values import Refusal

#: Tokens of the longest text tried; tables of a graph may end before.
_LONG = 300
#: Shows the slopes, which are one number from one key to the next.
_STEP = case_of([[1] * 9], 1)
#: Of the largest bias, which is a product in float32.
_TOLERANCE = 1e-6


def head_slopes(added: Callable[[Case], np.ndarray], heads: int) -> np.ndarray | None:
    """The slope of each head, ``float32 [heads]``; None where nothing is added.

    Args:
        added: Gives what is added to the scores of a case that are kept, in a shape that broadcasts
            to ``[B, heads, S, P + S]``.
        heads: Query heads.

    Raises:
        Refusal: It is no slope times the distance.
    """
    cases = [*CASES, _STEP]
    found = [added(case) for case in cases]
    length, bias = longest(lambda length: added(_long(length)), _LONG)
    cases, found = [*cases, _long(length)], [*found, bias]
    if not any(bias.any() for bias in found):
        return None
    step = np.broadcast_to(added(_STEP), (1, heads, 1, 9))[0, :, 0]
    slopes: np.ndarray = (step[:, -1] - step[:, -2]).astype(np.float32)
    for case, bias in zip(cases, found, strict=True):
        queries = case.past + np.arange(case.length)[:, None]
        expected = slopes[:, None, None] * (np.arange(case.mask.shape[1]) - queries)
        # A graph may count visible keys, which is the same without padding between tokens.
        shown = visible(case)[:, None] & ~has_hole(case.mask)[:, None, None, None]
        if not slopes.all() or _spread(bias - expected, shown) > _TOLERANCE * np.abs(bias).max():
            raise Refusal(
                "the mask adds a bias to scores that it keeps, which is no slope times the distance"
            )
    return slopes


def _long(length: int) -> Case:
    return case_of([[1] * length], 5)


def _spread(values: np.ndarray, shown: np.ndarray) -> float:
    """How far values of a row ``[..., S, L]`` lie apart, of those that are shown."""
    values, shown = np.broadcast_arrays(values, shown)
    most = np.where(shown, values, -np.inf).max(-1)
    least = np.where(shown, values, np.inf).min(-1)
    return float(np.maximum(most - least, 0).max())
