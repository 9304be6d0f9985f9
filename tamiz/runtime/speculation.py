"""Whether and how tokens are guessed ahead, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tamiz.files.bundle import MANIFEST
from tamiz.files.errors import TamizError

MODES = ("auto", "off", "ngram")


@dataclass
class Speculation:
    """How tokens are guessed, and what came of it; complete when the answer is.

    Attributes:
        mode: ``off``; ``ngram`` guesses by `tamiz.runtime.lookup`; ``auto`` is ``ngram`` where the
            model gives the same logits in a run as in steps, else ``off``.
        runs: Runs of the model after the prompt.
        drafted: Guesses that were verified.
        accepted: Guesses that were right.

    Raises:
        TamizError: An unknown mode.
    """

    mode: str = "auto"
    runs: int = 0
    drafted: int = 0
    accepted: int = 0

    def __post_init__(self) -> None:
        """Checks the mode."""
        if self.mode not in MODES:
            raise TamizError(f"speculate is {self.mode!r}, expected one of {', '.join(MODES)}")

    def resolve(self, equal_runs: bool, bundle: Path) -> None:
        """Replaces ``auto`` by the mode that it means for a model.

        Args:
            equal_runs: Whether a run of several tokens gives the logits of single steps.
            bundle: The model's bundle, for the message.

        Raises:
            TamizError: The mode needs `equal_runs`, which the model does not have.
        """
        if self.mode == "auto":
            self.mode = "ngram" if equal_runs else "off"
        if self.mode != "off" and not equal_runs:
            raise TamizError(
                f"{bundle / MANIFEST}: equal_runs is false, so a run cannot verify guesses for"
                f" --speculate={self.mode}; try --speculate=off, or build the bundle again without"
                " techniques that act on single steps"
            )
