"""Guesses of what follows, from the answer's own text and from earlier answers of the server.

Agents ask nearly the same again and again. The last tokens of a text are looked up among those of
recent answers in the same scope; what followed there is the guess. How often such guesses are right
is counted by how many tokens agree, over all answers of the scope and whether the guess was used or
not. So a guess is verified only where guesses of its kind have paid.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Ids

from tamiz.runtime.speculation.lookup import LONGEST, Lookup

#: Tokens that must agree before what followed is guessed.
AGREE = 4
#: Tokens that a scope remembers; where there are more, the older half is forgotten.
MOST_TOKENS = 1 << 15
#: Scopes that are remembered, those of the latest use.
MOST_SCOPES = 16
#: Weight of one more token in the share of guesses that were right, and the share to begin with.
_RATE, _FIRST = 0.05, 0.3
#: Ends a text.
_END = -1


class Past:
    """Recent answers of one scope, one after the other, and where runs of tokens were last.

    Attributes:
        tokens: The texts, each with an end that is no token.
        right: Share of guesses that were right, by the number of tokens that agreed before.
    """

    def __init__(self) -> None:
        """Remembers nothing yet."""
        self.tokens: list[int] = []
        self.right = [_FIRST] * (LONGEST + 1)
        self._after: dict[int, int] = {}
        self.version = 0

    def remember(self, text: Ids[int]) -> None:
        """Adds a text."""
        text = text[-(MOST_TOKENS // 2 - 1) :]
        if len(self.tokens) + len(text) >= MOST_TOKENS:
            kept = self.tokens[-MOST_TOKENS // 2 :]
            self.tokens, self._after = [], {}
            self.version += 1
            self._append(kept)
        self._append([*text, _END])

    def find(self, tail: Ids[int]) -> int | None:
        """The place after the latest copy of `AGREE` tokens; None where there is none."""
        place = self._after.get(hash(tuple(tail)))
        if place is None or self.tokens[place - AGREE : place] != list(tail):
            return None
        return place

    def _append(self, text: Ids[int]) -> None:
        start = len(self.tokens)
        self.tokens += text
        for place in range(max(AGREE, start + 1), len(self.tokens)):
            self._after[hash(tuple(self.tokens[place - AGREE : place]))] = place


class Pasts:
    """What each scope remembers."""

    def __init__(self) -> None:
        """Remembers nothing yet."""
        self._of: OrderedDict[bytes, Past] = OrderedDict()

    def of(self, scope: bytes) -> Past:
        """What a scope remembers."""
        past = self._of.setdefault(scope, Past())
        self._of.move_to_end(scope)
        while len(self._of) > MOST_SCOPES:
            self._of.popitem(last=False)
        return past


class Guesses:
    """The text of an answer with its prompt, and what may follow it."""

    def __init__(self, text: Ids[int], past: Past) -> None:
        """Indexes a text.

        Args:
            text: Token ids.
            past: What the answer's scope remembers.
        """
        self._own, self._past = Lookup(text), past
        self._place: int | None = None
        self._agreed, self._version = 0, past.version
        self._look()

    def add(self, token: int) -> None:
        """Appends a token, and learns whether the guesses for it were right."""
        self._own.add(token)
        place, past = self._place, self._past
        if self._version != past.version:  # places have moved
            self._place, self._version = None, past.version
        elif place is not None:
            right, agreed = past.tokens[place] == token, min(self._agreed, LONGEST)
            past.right[agreed] += _RATE * (right - past.right[agreed])
            self._place = place + 1 if right else None
            self._agreed += 1
        if self._place is None or past.tokens[self._place] == _END:
            self._look()

    def chances(self, count: int) -> list[float]:
        """How likely each of the next `count` guesses is right, if those before it are."""
        own, recalled = self._own.chances(count), self._recalled(count)
        return recalled if self._prefers(own, recalled) else own

    def guess(self, count: int) -> list[int]:
        """At most `count` tokens that may follow."""
        own, recalled = self._own.chances(1), self._recalled(count)
        if not self._prefers(own, recalled):
            return self._own.guess(count)
        assert self._place is not None
        return self._past.tokens[self._place : self._place + len(recalled)]

    def _prefers(self, own: list[float], recalled: list[float]) -> bool:
        """Whether earlier answers are more likely right than the text itself."""
        return bool(recalled) and (not own or recalled[0] > own[0])

    def _recalled(self, count: int) -> list[float]:
        """The chances of guesses from earlier answers."""
        place, past = self._place, self._past
        if place is None or self._version != past.version:
            return []
        found = []
        for ahead, token in enumerate(past.tokens[place : place + count]):
            if token == _END:
                break
            found.append(past.right[min(self._agreed + ahead, LONGEST)])
        return found

    def _look(self) -> None:
        """Finds the place in earlier answers that goes on from the last tokens."""
        tail = self._own.tokens[-AGREE:]
        self._place = self._past.find(tail) if len(tail) == AGREE else None
        if self._place is not None and self._past.tokens[self._place] == _END:
            self._place = None
        self._agreed = AGREE
