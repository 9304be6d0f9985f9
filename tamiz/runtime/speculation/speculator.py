"""Exact speculation: tokens are guessed, and one run of the model verifies several of them.

    run over  t₀ g₁ g₂ … gₖ   →   logits after each
    t₁ is drawn from the logits after t₀; while tᵢ = gᵢ, tᵢ₊₁ is drawn from the logits after gᵢ

Each token is drawn from the logits that a step of its own would give, with the random number of
its position. So the text is that of decoding step by step, greedy or with a seed. The manifest's
`equal_runs` says that these logits are the same bits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tamiz.runtime.sampling import Sampler
from tamiz.runtime.sequence import Logits, Sequence
from tamiz.runtime.speculation.lookup import Lookup
from tamiz.runtime.speculation.prices import CHOICES, Prices
from tamiz.runtime.speculation.self_draft import SelfDraft
from tamiz.runtime.speculation.settings import Resolved
from tamiz.runtime.speculation.statistics import SpeculationStatistics


@contextmanager
def decoding(
    sequence: Sequence,
    sampler: Sampler,
    speculation: Resolved,
    statistics: SpeculationStatistics,
    prices: Prices,
    end: int,
) -> Iterator[Callable[[int], Logits]]:
    """The step function of a sequence; afterwards the sequence has what was stepped over.

    Args:
        sequence: The sequence, which has run the prompt without ``speculation.off``.
        sampler: Draws the tokens that are stepped over.
        speculation: How tokens are guessed, and what the answer does without.
        statistics: Gets the mode, and what is drafted and accepted.
        prices: What runs cost; learns from every run.
        end: Tokens that the sequence will have at most.
    """
    statistics.mode = speculation.mode
    if speculation.mode == "off":
        yield sequence.step
        return
    self_draft = speculation.mode == "self"
    draft = SelfDraft(sequence, sampler, speculation.off) if self_draft else None
    speculator = Speculator(sequence, statistics, prices, end, draft)
    try:
        yield speculator.step
    finally:
        speculator.close()


class Speculator:
    """Steps of a sequence, several of which may come from one run."""

    def __init__(
        self,
        sequence: Sequence,
        counts: SpeculationStatistics,
        prices: Prices,
        end: int,
        draft: SelfDraft | None,
    ) -> None:
        """Starts after the prompt; see `decoding`."""
        self._sequence, self._counts, self._prices = sequence, counts, prices
        self._lookup = Lookup(sequence.tokens)
        self._end = end
        self._draft = draft
        self._by_model = False
        self._guesses: list[int] = []
        self._rows: Logits | None = None
        self._used = 0

    def step(self, token: int) -> Logits:
        """Runs one token; returns the logits ``[V]`` of the next, valid until the next call."""
        self._lookup.add(token)
        if self._rows is not None and self._used < len(self._guesses):
            right = self._guesses[self._used] == token
            if self._draft is not None and self._by_model:
                self._draft.learn(right)
            if right:
                self._used += 1
                self._counts.accepted += 1
                self._counts.self_accepted += self._by_model
                row: Logits = self._rows[self._used]
                return row
        return self._run()

    def close(self) -> None:
        """Forgets the guesses that were read and not used."""
        self._cut(len(self._lookup.tokens))

    def _cut(self, length: int) -> None:
        # Where the model guesses, state of fixed size belongs to techniques that are off.
        self._sequence.truncate(length, unread=self._draft is not None)

    def _run(self) -> Logits:
        """Runs the last token, with as many guesses as pay."""
        sequence, text = self._sequence, self._lookup.tokens
        self._cut(len(text) - 1)
        pending = text[len(sequence.tokens) :]
        self._guesses, self._used = self._guess(len(pending)), 0
        if self._guesses and self._draft is None:
            sequence.keep(len(pending) + len(self._guesses))
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
        self._counts.self_drafted += len(self._guesses) * self._by_model
        row: Logits = rows[0]
        return row

    def _guess(self, pending: int) -> list[int]:
        """The next tokens, from the text so far or from the model, whichever promises more."""
        self._by_model = False
        text = self._lookup.tokens
        room = min(self._end - len(text), CHOICES[-1] - pending)
        if self._draft is not None:  # which reads its guesses without a copy of the state
            room = min(room, self._sequence.spare)
        if room <= 0 or self._prices.step is None:
            return []
        count, rate = self._prices.best_guesses(self._lookup.chances(room), pending)
        if self._draft is not None and pending == 1:
            own, own_rate = self._draft.best(self._prices, room, pending)
            if own and (count == 0 or own_rate > rate):
                self._by_model = True
                return self._draft.guess(own, text[-1])
        return self._lookup.guess(count)
