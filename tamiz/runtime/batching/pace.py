"""How many tokens of prompts a batch reads beside the steps of other sequences."""

from __future__ import annotations

from tamiz.runtime.speculation.prices import follow

#: Tokens of prompts that a run may have beside steps.
CHOICES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
#: After so many runs with one number of tokens the next larger number is tried again.
_TRY = 40


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

    def tokens(self, steps: int) -> int:
        """Tokens of prompts that a run with so many steps may read.

        0 where it is not known yet how long such a run takes without.
        """
        seconds = self._seconds.get(steps)
        if seconds is None:
            return 0
        longest = self.limit * seconds[0]
        best = max(tokens for tokens, time in seconds.items() if time <= longest)
        larger = next((tokens for tokens in CHOICES if tokens > best), best)
        if best == 0:
            return larger
        if larger not in seconds:
            row = (seconds[best] - seconds[0]) / best
            return larger if seconds[0] + larger * row <= longest else self._at_times(larger, best)
        return self._at_times(larger, best)

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

    def _at_times(self, larger: int, best: int) -> int:
        return larger if self._runs % _TRY == _TRY - 1 else best
