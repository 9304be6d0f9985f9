"""What came of guessing tokens ahead."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SpeculationStatistics:
    """Counts of one answer; complete when the answer is.

    Attributes:
        mode: The mode that was used, never ``auto``.
        runs: Runs of the model after the prompt, without steps that guess.
        drafted: Guesses that were verified.
        accepted: Guesses that were right.
        self_drafted: Those of the verified guesses that the model itself made.
        self_accepted: Those of them that were right.
    """

    mode: str = "off"
    runs: int = 0
    drafted: int = 0
    accepted: int = 0
    self_drafted: int = 0
    self_accepted: int = 0
