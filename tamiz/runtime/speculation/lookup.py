"""Guesses the next tokens of a text from an earlier place that continues alike.

A *place* is the position after an earlier copy of the last n tokens; the tokens from there on are
the guess. A place is kept while it predicts. When it fails, the next one is the likeliest of:

- *indexed*: the latest copy of the last n tokens, n = 6, 4, 3, 2, 1 (the longest that exists);
- *near*: the next copy of the last token, at most `WINDOW` tokens after the place that failed.
  An edited copy goes on there.

How often a guess is right is counted by the kind of place and by n, at every token, whether the
guess was used or not. So learning costs no run of the model.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Numbers of tokens under which positions are indexed, the longest first.
SIZES = (6, 4, 3, 2, 1)
#: Tokens after a failed place in which the text may continue to be copied.
WINDOW = 48
#: Agreements of a place that are counted separately; more are counted together.
LONGEST = 16
#: Weight of one more token in the share of guesses that were right.
_RATE = 0.06
#: Shares to begin with, by the number of tokens that agree: indexed, near.
_SHARES = [0.75, 0.8, 0.84, 0.87, 0.89, 0.91, 0.92, 0.93, 0.94, 0.94, 0.95]
_FIRST = ([0, 0.1, 0.25, 0.4, 0.55, 0.65, *_SHARES], [0, 0.4, 0.55, 0.65, 0.7, 0.72, *_SHARES])


class Lookup:
    """A growing text, and the place in it that predicts its next tokens.

    Attributes:
        tokens: The text.
    """

    def __init__(self, prompt: Iterable[int]) -> None:
        """Indexes a prompt.

        Args:
            prompt: Token ids.
        """
        self.tokens: list[int] = []
        self._after: list[dict[tuple[int, ...], int]] = [{} for _ in SIZES]
        self._right = [list(shares) for shares in _FIRST]
        self._place: int | None = None
        self._near = 0
        self._agreed = 0
        for token in prompt:
            self.tokens.append(token)
            self._index()

    def add(self, token: int) -> None:
        """Appends a token, and learns whether the guess for it was right."""
        place, failed = self._place, None
        self.tokens.append(token)
        if place is not None:
            right = self.tokens[place] == token
            shares, agreed = self._right[self._near], min(self._agreed, LONGEST)
            shares[agreed] += _RATE * (right - shares[agreed])
            if right:
                self._place, self._agreed = place + 1, agreed + 1
            else:
                self._place, failed = None, place
        if self._place is None or self._agreed < SIZES[1]:
            self._choose(failed)
        self._index()

    def guess(self, count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        place = self._place
        if place is None:
            return []
        guessed = self.tokens[place : place + count]
        while guessed and len(guessed) < count:  # the copy reaches the end of the text and repeats
            guessed += guessed[: count - len(guessed)]
        return guessed

    def chances(self, count: int) -> list[float]:
        """Probability of each of the next `count` guesses, if those before it are right."""
        if self._place is None:
            return []
        shares = self._right[self._near]
        start = self._agreed
        return [shares[min(n, LONGEST)] for n in range(start, start + count)]

    def _choose(self, failed: int | None) -> None:
        """Takes the likeliest place for the next token; `_index` has not seen the last token."""
        tokens = self.tokens
        best = -1.0
        if self._place is not None:
            best = self._right[self._near][min(self._agreed, LONGEST)]
        for size, after in zip(SIZES, self._after, strict=True):
            place = after.get(tuple(tokens[-size:]))
            if place is not None:
                if self._right[0][size] > best:
                    best = self._right[0][size]
                    self._place, self._near, self._agreed = place, 0, size
                break
        if failed is not None and self._right[1][1] > best:
            try:
                end = min(failed + WINDOW, len(tokens) - 1)
                self._place = tokens.index(tokens[-1], failed, end) + 1
            except ValueError:
                return
            self._near, self._agreed = 1, 1

    def _index(self) -> None:
        """Notes the end of the text under its last tokens."""
        tokens = self.tokens
        end = len(tokens)
        for size, after in zip(SIZES, self._after, strict=True):
            after[tuple(tokens[-size:])] = end
