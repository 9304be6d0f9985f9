"""Drafts for all answers of a run: which of them are worth the rows that verify them.

A run of B answers and d drafts gives B + Σ c₁…cₖ tokens on average, over the k-th drafts of all
answers, and takes p(d) times as long as without drafts. Drafts are added, the likeliest first, as
long as (B + Σ c₁…cₖ) / p(d) grows. p is measured while the server runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from tamiz.runtime.speculation.prices import CHOICES, Prices
from tamiz.serving.recalled import Guesses

#: Drafts that a run may verify, of all its answers.
MOST = CHOICES[-1] - 1
#: Drafts are verified where they promise this many times the tokens per second: it is an estimate.
_GAIN = 1.05
#: A draft that is right less often than this is not considered.
_HOPELESS = 0.05


class Drafts:
    """Chooses drafts by the measured price of rows."""

    def __init__(self, most: int = MOST) -> None:
        """Knows no prices yet; a run verifies at most `most` drafts, 0 to `MOST`."""
        self._most = most
        self._prices: dict[int, Prices] = {}

    def measured(self, answers: int, drafts: int, seconds: float) -> None:
        """Notes how long a run took that read a token and drafts of so many answers, no prompt."""
        self._prices.setdefault(answers, Prices()).add(1 + drafts, seconds)

    def choose(self, texts: Sequence[Guesses]) -> list[list[int]]:
        """The drafts of each answer for the next run.

        Args:
            texts: The text of each answer with its prompt.
        """
        prices = self._prices.get(len(texts))
        if prices is None or prices.step is None:
            return [[] for _ in texts]
        counts = self._counts([text.chances(self._most) for text in texts], prices)
        return [text.guess(count) for text, count in zip(texts, counts, strict=True)]

    def _counts(self, chances: list[list[float]], prices: Prices) -> list[int]:
        """Number of drafts of each answer."""
        tokens = float(len(chances))
        best_rate, best = tokens * _GAIN, [0] * len(chances)
        counts = [0] * len(chances)
        waiting = [(-c[0], number) for number, c in enumerate(chances) if c and c[0] > _HOPELESS]
        heapq.heapify(waiting)
        while waiting and sum(counts) < self._most:
            alive, number = heapq.heappop(waiting)
            tokens -= alive
            counts[number] += 1
            rate = tokens / prices.of(1 + sum(counts))
            if rate > best_rate:
                best_rate, best = rate, counts.copy()
            following = chances[number][counts[number] :]
            if following and -alive * following[0] > _HOPELESS:
                heapq.heappush(waiting, (alive * following[0], number))
        return best
