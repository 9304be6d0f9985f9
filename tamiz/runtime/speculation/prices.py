"""What a run of several rows costs, in steps of one row, measured while a model decodes."""

from __future__ import annotations

from collections.abc import Sequence

#: Rows that a run may have.
CHOICES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32)
#: Price of each further row before anything was measured, in steps.
_ROW = 0.12
#: Guesses are verified where they promise this many times the tokens per second of a step: what
#: they promise is an estimate.
_GAIN = 1.03
#: A guess that is right less often than this is not considered, nor are those behind it.
_HOPELESS = 0.02
#: Weights of a new measurement that is lower, or higher, than the value so far: other programs
#: only make a run slower.
_LOWER, _HIGHER = 0.5, 0.1
#: A run counts as at most so many times as long as expected: one stop of the whole program must not
#: make a number of rows look so dear that it is never measured again.
_STALL = 2.0


class Prices:
    """Seconds of a step, and how many steps a run of M rows takes.

    Attributes:
        step: Seconds of a run of one row; None before the first.
    """

    def __init__(self) -> None:
        """Starts with a guess, by which lengths are chosen until they were measured."""
        self.step: float | None = None
        self._measured: dict[int, float] = {}

    def add(self, rows: int, seconds: float) -> None:
        """Notes how long a run took."""
        if rows == 1:
            longest = seconds if self.step is None else _STALL * self.step
            self.step = follow(self.step, min(seconds, longest))
        elif self.step is not None:
            price = min(seconds / self.step, _STALL * self.of(rows))
            self._measured[rows] = follow(self._measured.get(rows), price)

    def of(self, rows: int) -> float:
        """Price of a run of `rows` rows, in steps.

        Measured, or on the line through the next measured lengths; from the largest on with the
        slope from one row.
        """
        if rows in self._measured:
            return max(1.0, self._measured[rows])
        below = max((r for r in self._measured if r < rows), default=1)
        above = min((r for r in self._measured if r > rows), default=0)
        low = self._measured.get(below, 1.0)
        if above:
            slope = (self._measured[above] - low) / (above - below)
        else:
            slope = (low - 1.0) / (below - 1) if below > 1 else _ROW
        return max(1.0, low + slope * (rows - below))

    def best_guesses(
        self, chances: Sequence[float], pending: int = 1, each: float = 0.0
    ) -> tuple[int, float]:
        """Number of guesses that makes the most tokens per second, and how many that are.

        A run of r rows gives 1 + c₁ + c₁c₂ + … + c₁…cₖ tokens on average, k = r − pending.

        Args:
            chances: Probability c of each guess, if those before it are right.
            pending: Rows of the run that are no guesses.
            each: Price of making one guess, in steps.

        Returns:
            The number, 0 where a run without guesses is best; and tokens per step's time.
        """
        best, count, tokens, alive = _GAIN / self.of(pending), 0, 1.0, 1.0
        for guesses, chance in enumerate(chances, 1):
            alive *= chance
            if alive < _HOPELESS:
                break
            tokens += alive
            rows = pending + guesses
            if rows in CHOICES or guesses == len(chances):
                rate = tokens / (self.of(rows) + guesses * each)
                if rate > best:
                    best, count = rate, guesses
        return count, best


def follow(value: float | None, measured: float) -> float:
    """The value after a new measurement."""
    if value is None:
        return measured
    return value + (_LOWER if measured < value else _HIGHER) * (measured - value)
