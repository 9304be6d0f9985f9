"""Calibration text that a model writes itself, so that no data set is needed.

Every window begins with a token drawn uniformly and goes on with tokens drawn from the model
(LLM-QAT, arXiv 2305.17888); all windows are written side by side.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tamiz.runtime import Model
from tamiz.sampling import Sampling, distribution

_SEED = 0
_SAMPLING = Sampling(temperature=1.0, top_k=64, seed=_SEED)


def generate_windows(
    model: Model,
    windows: int,
    length: int,
    tell: Callable[[int, int], None] = lambda done, total: None,
) -> list[list[int]]:
    """Tokens of windows that the model writes; the same ones every time.

    Args:
        model: The dense model.
        windows: How many.
        length: Tokens of each.
        tell: Called with tokens of a window written so far, and `length`.
    """
    random = np.random.default_rng(_SEED)
    ids = random.integers(0, model.vocabulary, (windows, 1))
    cache = {state.past: state.zeros(0, windows) for state in model.states}
    rows = ids
    for written in range(1, length):
        tell(written, length)
        feeds = {
            **cache,
            "input_ids": ids,
            "attention_mask": np.ones((windows, written), np.int64),
        }
        if model.has_positions:
            feeds["position_ids"] = np.full((windows, 1), written - 1)
        names = [state.present for state in model.states]
        logits, *presents = model.session.run(["logits", *names], feeds)
        cache = dict(zip(cache, presents, strict=True))
        ids = np.array([[_draw(row, random)] for row in logits[:, -1]])
        rows = np.concatenate([rows, ids], axis=1)
    return [row.tolist() for row in rows]


def _draw(logits: NDArray[np.float32], random: np.random.Generator) -> int:
    tokens, probabilities = distribution(logits, _SAMPLING)
    drawn = int(np.searchsorted(np.cumsum(probabilities), random.random(), side="right"))
    return int(tokens[min(drawn, len(tokens) - 1)])
