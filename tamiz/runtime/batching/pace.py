"""How many tokens of prompts a batch reads beside the steps of other sequences."""

from __future__ import annotations

from tamiz.runtime.speculation.prices import follow

#: Tokens of prompts that a run may have beside steps.
CHOICES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
#: After so many runs with one number of tokens the next larger number is tried again.
_TRY = 40
#: A number is tried that is at most so many times the largest that was short enough.
_GROWTH = 4


class Pace:
    """Keeps runs that read a prompt nearly as short as runs that do not, by their measured times.

    Attributes:
        limit: How many times as long a run may take with tokens of prompts as without.
    """

    def __init__(self, limit: float) -> None:
        """Starts without measurements."""
        self.limit = limit
        # Seconds of a run by its steps and by its tokens of prompts.
        self._seconds: dict[int, dict[int, float]] = {}
        self._runs = 0

    def tokens(self, steps: int, share: float = 0.0) -> int:
        """Tokens of prompts that a run with so many steps may read.

        0 where it is not known yet how long such a run takes without.

        Args:
            steps: Tokens that the run reads of sequences that step.
            share: Sequences whose prompts are read, for each one that steps. Where this allows
                longer runs than `limit`, each sequence gets an equal share of the time.
        """
        seconds = self._seconds.get(steps)
        if seconds is None:
            return 0
        longest = max(self.limit, 1.0 + share) * seconds[0]
        best = max(tokens for tokens, time in seconds.items() if time <= longest)
        larger = [tokens for tokens in CHOICES if tokens > best]
        if best == 0 or not larger:
            return larger[0] if larger else best
        row = (seconds[best] - seconds[0]) / best
        most = min(_GROWTH * best, (longest - seconds[0]) / row if row > 0 else CHOICES[-1])
        untried = [tokens for tokens in larger if tokens <= most and tokens not in seconds]
        if untried:
            return untried[-1]
        return larger[0] if self._runs % _TRY == _TRY - 1 else best

    def add(self, steps: int, prompt: int, seconds: float) -> None:
        """Notes how long a run took that had so many steps and tokens of prompts."""
        if prompt == 0:
            seconds_by_rows = self._seconds.setdefault(steps, {})
        elif prompt in CHOICES and steps in self._seconds:
            seconds_by_rows = self._seconds[steps]
            self._runs += 1
        else:
            return
        seconds_by_rows[prompt] = follow(seconds_by_rows.get(prompt), seconds)
