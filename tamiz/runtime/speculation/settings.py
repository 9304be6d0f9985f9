"""Whether and how tokens are guessed ahead."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.files.bundle import Bundle

MODES = ("auto", "off", "ngram", "self")


class Resolved(NamedTuple):
    """What a mode means for a model.

    Attributes:
        mode: Any mode but ``auto``.
        off: The techniques that the answer does without.
    """

    mode: str
    off: frozenset[str]


@dataclass(frozen=True)
class Speculation:
    """How tokens are guessed.

    Attributes:
        mode: ``off``; ``ngram`` guesses by `tamiz.runtime.speculation.lookup`; ``self`` also by
            steps of the model with techniques that the answer does without (by default with all
            that can be switched off). ``auto`` never changes the text: it is ``ngram`` where the
            model gives the same logits in a run as in steps, ``self`` where techniques are switched
            off as well, and else ``off``.

    Raises:
        TamizError: An unknown mode.
    """

    mode: str = "auto"

    def __post_init__(self) -> None:
        """Checks the mode."""
        if self.mode not in MODES:
            raise TamizError(f"speculate is {self.mode!r}, expected one of {', '.join(MODES)}")

    def resolve(
        self, bundle: Bundle, switches: Collection[str], without: Collection[str]
    ) -> Resolved:
        """What the mode means for a model.

        Args:
            bundle: The model's bundle.
            switches: Techniques that a run can do without.
            without: Techniques that the user switched off.

        Raises:
            TamizError: The model cannot verify guesses, or has no technique to guess with.
        """
        from tamiz.files.bundle import MANIFEST

        mode, off = (
            self.mode,
            frozenset(switches if self.mode == "self" and not without else without),
        )
        manifest = bundle.manifest
        unequal = sorted(set(manifest.step_techniques) - off)
        verifies = manifest.equal_runs and not unequal
        if mode == "auto":
            mode = "off" if not verifies else "self" if off else "ngram"
        if mode == "off":
            return Resolved(mode, off)
        path = bundle.path / MANIFEST
        if unequal:
            raise TamizError(
                f"{path}: {', '.join(unequal)} acts on single steps only, so a run cannot verify"
                f" guesses for --speculate={mode}; try --speculate=off or"
                f" --without {','.join(unequal)}"
            )
        if not verifies:
            raise TamizError(
                f"{path}: equal_runs is false, so a run cannot verify guesses for"
                f" --speculate={mode}; try --speculate=off, or build the bundle again"
            )
        if mode == "self" and not off:
            raise TamizError(
                f"{path}: no technique of the bundle can be switched off, so the model cannot guess"
                " for itself; try --speculate=ngram"
            )
        return Resolved(mode, off)
