"""What a build leaves to its decider: the plan, the gate of the whole model, and what is refused.

`tamiz.building.decide.by_policy` follows policy and flags, `within_limits` chooses within limits,
and `replay` takes the decisions from the report of an earlier build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from tamiz.api.statistics import Imatrix
from tamiz.building.decision import Decision
from tamiz.building.search.candidates import Candidates, Fill, Write
from tamiz.calibration import file as calibrations
from tamiz.calibration.calibrate import Text, calibrate_on_domains, read_texts
from tamiz.calibration.calibration import Calibration
from tamiz.calibration.domains import OWN
from tamiz.calibration.imatrix import weighed_by
from tamiz.evaluation.judges import judge_of
from tamiz.evaluation.judges.judge import Judge, WhatIsRead
from tamiz.evaluation.windows import Window
from tamiz.files.errors import TamizError
from tamiz.planning.plan import Plan
from tamiz.reporting.gate import WholeModelGate
from tamiz.survey.survey import Survey
from tamiz.system.progress import Progress


class DefaultText(NamedTuple):
    """What a build reads where no calibration is given.

    Attributes:
        domains: Shipped domains; see `tamiz.calibration.domains`.
        texts: Texts beside them.
    """

    domains: Sequence[str]
    texts: Sequence[Text]


@dataclass(frozen=True)
class Tools:
    """What a decider works with.

    Attributes:
        survey: The dense bundle's graph.
        work: Folder for files that live as long as the build.
        calibration_file: A calibration's file.
        text: What is read where there is no such file.
        imatrix: Mean squared inputs that replace those of the calibration.
        samples: ``.npz`` files with an input of the model each.
        progress: Called with every step.
    """

    survey: Survey
    work: Path
    calibration_file: Path | None
    text: DefaultText
    imatrix: Imatrix | None
    samples: tuple[Path, ...]
    progress: Progress

    @property
    def judge(self) -> type[Judge]:
        """The judge of the model."""
        return judge_of(self.survey)

    def calibration(self, needed: bool) -> Calibration | None:
        """What is known of the inputs: the calibration, with the imatrix where one is given.

        Args:
            needed: Whether there is one where no file is given.

        Raises:
            TamizError: The file cannot be read, or is of another model.
        """
        calibration = None
        if self.calibration_file is not None:
            calibration = calibrations.load(self.calibration_file, self.survey.bundle)
            self._check_sites(calibration)
        elif needed:
            own = self.work / "calibration.safetensors"
            domains, texts = self.text
            calibration = calibrate_on_domains(self.survey, own, domains, texts, self.progress)
        if self.imatrix is None:
            return calibration
        return weighed_by(calibration, self.imatrix, self.survey)

    def judging_windows(self) -> list[Window]:
        """What judges where nothing is known of the inputs.

        Raises:
            TamizError: The model reads none of the text, and writes none.
        """
        domains, texts = self.text
        known = read_texts(self.survey.bundle, texts, domains, progress=self.progress)
        return known.judging or known.fitting

    @property
    def text_read(self) -> WhatIsRead:
        """What the report says of the text."""
        if self.calibration_file is not None:
            return "calibration"
        return "the model's own" if self.text == DefaultText((OWN,), ()) else "domains"

    def _check_sites(self, calibration: Calibration) -> None:
        """Ids of sites may differ between versions of tamiz and of plugins."""
        inputs = calibration.inputs
        if inputs and not any(site.id in inputs for site in self.survey.sites):
            raise TamizError(
                f"{self.calibration_file}: measured {next(iter(inputs))} and other sites that "
                f"{self.survey.bundle.path} does not have; run 'tamiz calibrate' again"
            )


@dataclass(frozen=True)
class CandidateTools:
    """How a decider makes candidates of the whole model.

    Attributes:
        write: Writes the bundle of a candidate into an existing folder.
        fill: Fits what a candidate's decisions lack.
        folder: Where candidates are written.
        progress: Told of every candidate.
    """

    write: Write
    fill: Fill
    folder: Path
    progress: Progress

    def judged_by(self, judge: Judge) -> Candidates:
        """Candidates that a judge scores."""
        return Candidates.of(judge, self.folder, self.write, self.fill, self.progress)


class Course(Protocol):
    """What a decider has decided before anything is fitted, and how it goes on."""

    @property
    def calibration(self) -> Calibration | None:
        """What fits and gates read."""

    @property
    def plan(self) -> Plan:
        """What is fitted at each site."""

    def gate(
        self, decisions: list[Decision], candidates: CandidateTools
    ) -> tuple[list[Decision], WholeModelGate]:
        """The decisions that the whole model keeps, and what the report says of that."""

    def refused(self, decisions: Sequence[Decision]) -> Mapping[str, list[str]]:
        """Techniques that were refused, by site id."""


class Decider(Protocol):
    """Decides what a build applies."""

    def start(self, tools: Tools) -> Course:
        """Calibrates and plans.

        Raises:
            TamizError: What is requested cannot be built.
        """
