"""Holds a build to its dense model: at its end, and on request after every graph pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.building.fit.fitting import Attempt
from tamiz.building.write.broken_pass import first_broken_pass
from tamiz.files.bundle import MODEL
from tamiz.files.errors import TamizError
from tamiz.survey.self_check import DifferentModelError, Reference
from tamiz.survey.survey import Survey

if TYPE_CHECKING:
    from tamiz.plugins import Plugins


class Equivalence:
    """Compares models of one build with its dense model, on one input.

    Args:
        surveyed: The dense model.
        plugins: The loaded plugins.
        sample: ``.npz`` file with the input; None to make one up.
    """

    def __init__(self, surveyed: Survey, plugins: Plugins, sample: Path | None) -> None:
        self._surveyed, self._plugins, self._sample = surveyed, plugins, sample
        self._passes: dict[str, float] = {}

    @cached_property
    def _reference(self) -> Reference | None:
        surveyed = self._surveyed
        return Reference.of(surveyed.bundle.model, surveyed.vocabulary, self._sample)

    def check_passes(self) -> None:
        """Compares all outputs after every graph pass.

        Techniques that lose something would hide a pass that changes an output a little.

        Raises:
            TamizError: A pass changes an output.
        """
        from tamiz.api.passes import Phase

        reference = self._reference
        if reference is None or reference.is_drawn:
            return
        dense = self._surveyed.bundle
        if broken := first_broken_pass(dense, self._plugins, reference):
            raise self._refusal(f"{broken[1]} after the graph pass {broken[0]}")
        self._passes = {"passes": float(sum(len(self._plugins.passes(phase)) for phase in Phase))}

    def check_build(self, folder: Path, applied: Sequence[Attempt]) -> dict[str, float]:
        """Compares a finished model; see `Reference.compare`.

        Args:
            folder: Of the built bundle.
            applied: The fits that it applies.

        Returns:
            What was found, and how many passes `check_passes` compared; nothing where no valid
            input is known, or outputs are drawn at random.

        Raises:
            TamizError: The built model is another one.
        """
        reference = self._reference
        if reference is None:
            return {}
        lossy = any(attempt.metrics.get("exact") != 1.0 for attempt in applied)
        try:
            found = reference.compare(folder / MODEL, techniques=bool(applied), lossy=lossy)
            return found | self._passes
        except DifferentModelError as error:
            if reference.is_drawn:
                return {}
            dense = self._surveyed.bundle
            broken = None if lossy else first_broken_pass(dense, self._plugins, reference)
            where = "" if broken is None else f" after the graph pass {broken[0]}"
            raise self._refusal(f"{error}{where}") from error

    def _refusal(self, reason: str) -> TamizError:
        return TamizError(
            f"{self._surveyed.bundle.path}: {reason}; nothing was written. Switch off the plugin, "
            "and report it with the model"
        )
