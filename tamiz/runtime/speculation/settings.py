"""Whether and how tokens are guessed ahead, and what came of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from tamiz.files.bundle import MANIFEST, Bundle
from tamiz.files.errors import TamizError

MODES = ("auto", "off", "ngram", "self")


@dataclass
class Speculation:
    """How tokens are guessed, and what came of it; complete when the answer is.

    Attributes:
        mode: ``off``; ``ngram`` guesses by `tamiz.runtime.speculation.lookup`; ``self`` also by
            steps of the model with techniques that the answer does without (by default with all
            that can be switched off). ``auto`` never changes the text: it is ``ngram`` where the
            model gives the same logits in a run as in steps, ``self`` where techniques are switched
            off as well, and else ``off``.
        runs: Runs of the model after the prompt, without steps that guess.
        drafted: Guesses that were verified.
        accepted: Guesses that were right.
        self_drafted: Those of the verified guesses that the model itself made.
        self_accepted: Those of them that were right.

    Raises:
        TamizError: An unknown mode.
    """

    mode: str = "auto"
    runs: int = 0
    drafted: int = 0
    accepted: int = 0
    self_drafted: int = 0
    self_accepted: int = 0

    def __post_init__(self) -> None:
        """Checks the mode."""
        if self.mode not in MODES:
            raise TamizError(f"speculate is {self.mode!r}, expected one of {', '.join(MODES)}")

    def resolve(
        self, bundle: Bundle, switches: Collection[str], without: Collection[str]
    ) -> frozenset[str]:
        """Replaces ``auto`` by the mode that it means for a model.

        Args:
            bundle: The model's bundle.
            switches: Techniques that a run can do without.
            without: Techniques that the user switched off.

        Returns:
            The techniques that the answer does without.

        Raises:
            TamizError: The model cannot verify guesses, or has no technique to guess with.
        """
        off = frozenset(switches if self.mode == "self" and not without else without)
        manifest = bundle.manifest
        unequal = sorted(set(manifest.step_techniques) - off)
        verifies = manifest.equal_runs and not unequal
        if self.mode == "auto":
            self.mode = "off" if not verifies else "self" if off else "ngram"
        if self.mode == "off":
            return off
        path = bundle.path / MANIFEST
        if unequal:
            raise TamizError(
                f"{path}: {', '.join(unequal)} acts on single steps only, so a run cannot verify"
                f" guesses for --speculate={self.mode}; try --speculate=off or"
                f" --without {','.join(unequal)}"
            )
        if not verifies:
            raise TamizError(
                f"{path}: equal_runs is false, so a run cannot verify guesses for"
                f" --speculate={self.mode}; try --speculate=off, or build the bundle again"
            )
        if self.mode == "self" and not off:
            raise TamizError(
                f"{path}: no technique of the bundle can be switched off, so the model cannot guess"
                " for itself; try --speculate=ngram"
            )
        return off
