"""How many tokens of prompts a batch reads beside the steps of other sequences."""

from __future__ import annotations

from tamiz.runtime.prices import follow

#: Share of the time that a run may take, above which no further token is tried.
_NEAR = 0.95


class Pace:
    """Keeps runs that read a prompt nearly as short as runs that do not, by their measured times.

    Attributes:
        limit: How many times as long a run may take with tokens of prompts as without.
    """

    def __init__(self, limit: float) -> None:
        """Starts with one token a run."""
        self.limit = limit
        self._plain: dict[int, float] = {}  # seconds of a run of so many steps alone
        self._tokens: dict[int, int] = {}  # of prompts that go with so many steps

    def tokens(self, steps: int) -> int:
        """Tokens of prompts that a run with so many steps may read.

        0 where it is not known yet how long such a run takes without.
        """
        return self._tokens.get(steps, 1) if steps in self._plain else 0

    def add(self, steps: int, prompt: int, seconds: float) -> None:
        """Notes how long a run took that had so many steps and tokens of prompts."""
        if not steps:
            return
        if not prompt:
            self._plain[steps] = follow(self._plain.get(steps), seconds)
            return
        ratio = seconds / self._plain[steps]
        if ratio > self.limit:
            self._tokens[steps] = max(1, prompt - 1)
        elif ratio < _NEAR * self.limit and prompt >= self.tokens(steps):
            self._tokens[steps] = prompt + 1
