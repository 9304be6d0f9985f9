"""Logarithmic probabilities of tokens: log p_i = l_i − log Σ_j exp(l_j)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class TokenLogprob:
    """How likely a token was, and which were the likeliest.

    The probabilities are the model's own, before temperature, penalties and cuts.

    Attributes:
        token: The token that was drawn.
        logprob: Its logarithmic probability.
        top: The likeliest tokens and their logarithmic probabilities, the likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def log_softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Logarithmic probabilities in float64, along the last axis."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def token_logprob(logits: NDArray[np.float32], token: int, top: int) -> TokenLogprob:
    """Logarithmic probabilities of a token and of the likeliest ones.

    Args:
        logits: ``[V]``.
        token: The token.
        top: How many of the likeliest.
    """
    wide = log_softmax(logits)
    least = np.partition(wide, -top)[-top] if 0 < top < len(wide) else -np.inf
    best = np.flatnonzero(wide >= least)
    # Equal ones in the order of their ids, so that the same logits give the same answer.
    best = best[np.lexsort((best, -wide[best]))][:top]
    return TokenLogprob(
        token, float(wide[token]), tuple((int(number), float(wide[number])) for number in best)
    )
