"""Exact speculation: tokens are guessed, and one run of the model verifies several of them.

    run over  t₀ g₁ g₂ … gₖ   →   logits after each
    t₁ is drawn from the logits after t₀; while tᵢ = gᵢ, tᵢ₊₁ is drawn from the logits after gᵢ

Each token is drawn from the logits that a step of its own would give, with the random number of
its position. So the text is that of decoding step by step, greedy or with a seed. The model's
`equal_runs` says that these logits are the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tamiz.runtime.lookup import Lookup
from tamiz.runtime.prices import CHOICES, Prices
from tamiz.runtime.sequence import Logits, Sequence
from tamiz.runtime.speculation import Speculation


@contextmanager
def decoding(
    sequence: Sequence, speculation: Speculation, prices: Prices, end: int
) -> Iterator[Callable[[int], Logits]]:
    """The step function of a sequence; afterwards the sequence has what was stepped over.

    Args:
        sequence: The sequence, which has read the prompt.
        speculation: A resolved mode; gets what is drafted and accepted.
        prices: What runs cost; learns from every run.
        end: Tokens that the sequence will have at most.
    """
    if speculation.mode == "off":
        yield sequence.step
        return
    speculator = Speculator(sequence, speculation, prices, end)
    try:
        yield speculator.step
    finally:
        speculator.close()


class Speculator:
    """Steps of a sequence, several of which may come from one run."""

    def __init__(self, sequence: Sequence, counts: Speculation, prices: Prices, end: int) -> None:
        """Starts after the prompt; see `decoding`."""
        self._sequence, self._counts, self._prices = sequence, counts, prices
        self._lookup = Lookup(sequence.tokens)
        self._end = end
        self._guesses: list[int] = []
        self._rows: Logits | None = None
        self._used = 0

    def step(self, token: int) -> Logits:
        """Reads one token; returns the logits ``[V]`` of the next, valid until the next call."""
        self._lookup.add(token)
        if self._rows is not None and self._used < len(self._guesses):
            right = self._guesses[self._used] == token
            if right:
                self._used += 1
                self._counts.accepted += 1
                row: Logits = self._rows[self._used]
                return row
        return self._run()

    def close(self) -> None:
        """Forgets the guesses that were read and not used."""
        self._sequence.truncate(len(self._lookup.tokens))

    def _run(self) -> Logits:
        """Reads the last token, with as many guesses as pay."""
        sequence, text = self._sequence, self._lookup.tokens
        sequence.truncate(len(text) - 1)
        pending = text[len(sequence.tokens) :]
        room = min(self._end - len(text), CHOICES[-1] - len(pending))
        self._guesses, self._used = [], 0
        if room > 0 and self._prices.step is not None:
            count = self._prices.best_guesses(self._lookup.chances(room), len(pending))
            self._guesses = self._lookup.guess(count)
        if self._guesses:
            sequence.keep()
        start = time.perf_counter()
        if self._guesses or len(pending) > 1:
            rows = sequence.logits([*pending, *self._guesses])[len(pending) - 1 :]
            self._rows = rows
        else:
            rows = sequence.step(text[-1])[None]
            self._rows = None
        self._prices.add(len(pending) + len(self._guesses), time.perf_counter() - start)
        self._counts.runs += 1
        self._counts.drafted += len(self._guesses)
        row: Logits = rows[0]
        return row
