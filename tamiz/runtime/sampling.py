"""Choosing the next token from logits: greedy, temperature, top-k, top-p.

p_i = softmax(logits / temperature)_i   over the top_k largest logits,
cut to the smallest set of largest p with Σ p ≥ top_p, renormalised.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tamiz.files.errors import TamizError


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: Divides the logits; 0 takes the largest logit (greedy) and ignores the rest.
        top_k: Draw among the k largest logits; 0 for all.
        top_p: Draw among the smallest set of likeliest tokens of at least this mass, in (0, 1].
        seed: Of numpy's default generator; None takes entropy from the system.

    Raises:
        TamizError: A value out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        """Checks the ranges."""
        if not 0.0 <= self.temperature < float("inf"):
            raise TamizError(f"temperature is {self.temperature}, expected a finite number ≥ 0")
        if self.top_k < 0:
            raise TamizError(f"top_k is {self.top_k}, expected 0 (all tokens) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise TamizError(f"top_p is {self.top_p}, expected more than 0 and at most 1")
        if self.seed is not None and self.seed < 0:
            raise TamizError(f"seed is {self.seed}, expected 0 or more")


class Sampler:
    """Draws tokens; the same seed and logits give the same tokens."""

    def __init__(self, sampling: Sampling) -> None:
        """Starts the random stream of `sampling.seed`."""
        self._sampling = sampling
        # Greedy needs none, and numpy.random brings OpenSSL, 4 MB, into the process.
        self._random = np.random.default_rng(sampling.seed) if sampling.temperature else None

        self._numbers: deque[float] = deque()

    def __call__(self, logits: NDArray[np.float32]) -> int:
        """Draws one token.

        Args:
            logits: ``[V]``.
        """
        token = self.preview(logits, 0)
        if self._random is not None:
            self._numbers.popleft()
        return token

    def preview(self, logits: NDArray[np.float32], ahead: int) -> int:
        """The token that would be drawn after `ahead` other draws.

        Args:
            logits: ``[V]``.
            ahead: Number of draws before that.
        """
        if self._random is None:
            return int(logits.argmax())
        while len(self._numbers) <= ahead:
            self._numbers.append(self._random.random())
        tokens, probabilities = distribution(logits, self._sampling)
        mass = np.cumsum(probabilities)
        drawn = np.searchsorted(mass, self._numbers[ahead] * mass[-1], side="right")
        return int(tokens[min(drawn, len(tokens) - 1)])


def distribution(
    logits: NDArray[np.float32], sampling: Sampling
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The tokens that may be drawn and their probabilities (see the module's formula).

    Args:
        logits: ``[V]``.
        sampling: With a temperature above 0.

    Returns:
        Token ids ``[n]`` and probabilities ``[n]`` that sum to 1.
    """
    tokens = np.arange(len(logits))
    if 0 < sampling.top_k < len(logits):
        tokens = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
    scaled = logits[tokens].astype(np.float64)
    probabilities = np.exp((scaled - scaled.max()) / sampling.temperature)
    probabilities /= probabilities.sum()
    if sampling.top_p < 1.0:
        # Less likely ones are together at most 1 − top_p: the set does not need them.
        likely = np.flatnonzero(probabilities > (1.0 - sampling.top_p) / len(probabilities))
        order = likely[np.argsort(-probabilities[likely], kind="stable")]
        before = np.cumsum(probabilities[order]) - probabilities[order]
        kept = order[before < sampling.top_p]
        tokens, probabilities = tokens[kept], probabilities[kept]
        probabilities /= probabilities.sum()
    return tokens, probabilities
