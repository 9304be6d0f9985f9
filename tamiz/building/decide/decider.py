"""What a build leaves to its decider: the plan, the gate of the whole model, and what is refused.

`tamiz.building.decide.by_policy` follows policy and flags, `within_limits` chooses within limits,
and `replay` takes the decisions from the report of an earlier build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tamiz.building.fit.selection import Slot
from tamiz.calibration.calibrate import calibrate_on_own_text
from tamiz.calibration.file import Calibration
from tamiz.planning.plan import Plan
from tamiz.reporting.gate import WholeModelGate
from tamiz.survey.survey import Survey
from tamiz.system.progress import Progress


@dataclass(frozen=True)
class Tools:
    """What a decider works with.

    Attributes:
        survey: The dense bundle's graph.
        work: Folder for files that live as long as the build.
        progress: Called with every step.
    """

    survey: Survey
    work: Path
    progress: Progress

    def calibrate_on_own_text(self) -> Calibration:
        """A calibration of text that the model writes, kept as long as the build."""
        own = self.work / "calibration.safetensors"
        return calibrate_on_own_text(self.survey, own, self.progress)


@dataclass(frozen=True)
class CandidateTools:
    """How a decider makes candidates of the whole model.

    Attributes:
        write: Writes the bundle of a candidate into an existing folder.
        fill: Fits what a candidate's slots lack.
    """

    write: Callable[[Sequence[Slot], Path], None]
    fill: Callable[[Sequence[Slot]], list[Slot]]


class Decider(Protocol):
    """Decides what a build applies."""

    def calibration(self, tools: Tools) -> Calibration | None:
        """The calibration that fits and gates read."""

    def plan(self, tools: Tools, known: Calibration | None) -> Plan:
        """What is fitted at each site."""

    def gate(
        self,
        slots: list[Slot],
        tools: Tools,
        known: Calibration | None,
        candidates: CandidateTools,
    ) -> tuple[list[Slot], WholeModelGate]:
        """The slots that the whole model keeps, and what the report says of that."""

    def refused(self, slots: Sequence[Slot]) -> Mapping[str, list[str]]:
        """Techniques that were refused, by site id."""
