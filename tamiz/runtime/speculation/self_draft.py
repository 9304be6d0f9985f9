"""Guesses by the model itself: steps with techniques that the answer does without.

A technique that skips work decodes faster and errs now and then. A run without the technique
verifies its tokens, and writes their keys and values anew.
"""

from __future__ import annotations

import time
from collections.abc import Collection

from tamiz.runtime.sampling import Sampler
from tamiz.runtime.sequence import Sequence
from tamiz.runtime.speculation.prices import Prices, follow

#: Chance of a guess, and price of making one in steps, before they were measured.
_CHANCE, _PRICE = 0.9, 0.5
#: Weight of one more guess in the share of those that were right.
_RATE = 0.04
#: Tokens without guesses after which what was measured is forgotten: the text is longer now.
_FORGET = 256


class SelfDraft:
    """Guesses the next tokens of a sequence by its own steps.

    Attributes:
        off: Techniques that the answer does without, and that guess.
    """

    def __init__(self, sequence: Sequence, sampler: Sampler, off: Collection[str]) -> None:
        """Starts without measurements.

        Args:
            sequence: The sequence; does without `off` except while it guesses.
            sampler: Draws the answer's tokens.
            off: Techniques that guess.
        """
        self.off = off
        self._sequence, self._sampler = sequence, sampler
        self._chance = _CHANCE
        self._seconds: float | None = None
        self._unused = 0

    def best(self, prices: Prices, count: int, pending: int) -> tuple[int, float]:
        """Number of guesses that makes the most tokens per second; see `Prices.best_guesses`."""
        is_timed = self._seconds is not None and prices.step is not None
        each = self._seconds / prices.step if is_timed else _PRICE  # type: ignore[operator]
        best = prices.best_guesses([self._chance] * count, pending, each)
        self._unused = 0 if best[0] else self._unused + 1
        if self._unused >= _FORGET:
            self._unused, self._seconds, self._chance = 0, None, _CHANCE
        return best

    def guess(self, count: int, token: int) -> list[int]:
        """Guesses what follows `token`, which the sequence has not read; leaves it unread."""
        sequence, guessed = self._sequence, list[int]()
        length = len(sequence.tokens)
        sequence.switch_off(())
        for _ in range(count):
            start = time.perf_counter()
            token = self._sampler.preview(sequence.step(token), guessed)
            self._seconds = follow(self._seconds, time.perf_counter() - start)
            guessed.append(token)
        sequence.switch_off(self.off)
        sequence.truncate(length, unread=True)
        return guessed

    def learn(self, right: bool) -> None:
        """Notes whether a guess was right, if those before it were."""
        self._chance += _RATE * (right - self._chance)
