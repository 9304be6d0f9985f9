"""Candidates of the whole model: built, scored by the judge, and kept for the report."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tamiz.building.decision import Decision, changes_a_value
from tamiz.evaluation.judges.judge import DomainFigures, Judge, Quality
from tamiz.files.errors import TamizError, naming
from tamiz.reporting.gate import DomainReport, TrialReport
from tamiz.system.progress import Progress

#: Writes the bundle of a candidate into an existing folder.
Write = Callable[[Sequence[Decision], Path], None]
#: Fits what the decisions of a candidate lack.
Fill = Callable[[Sequence[Decision]], "list[Decision]"]


@dataclass
class Candidates:
    """How candidates are fitted and measured, and the trials so far.

    Attributes:
        judge: The judge, or its class: it says how predictions are reported.
        limit: Largest loss, see `tamiz.evaluation.judges.judge.Quality`; infinite for no limit.
        score: What a candidate loses.
        fill: Fits what the decisions of a candidate lack.
        trials: What was measured, in order.
    """

    judge: Judge | type[Judge]
    limit: float
    score: Callable[[Sequence[Decision]], Quality]
    fill: Fill
    trials: list[TrialReport] = field(default_factory=list)

    @classmethod
    def of(
        cls, judge: Judge, folder: Path, write: Write, fill: Fill, progress: Progress
    ) -> Candidates:
        """Candidates that are written into a folder, one after the other.

        Args:
            judge: Scores them.
            folder: Where they are written; what is there is replaced.
            write: Writes a bundle.
            fill: Fits what decisions lack.
            progress: Told of every window that is scored.
        """

        def report(done: int) -> None:
            progress("score a candidate", done, judge.windows)

        def score(decisions: Sequence[Decision]) -> Quality:
            report(0)
            write_candidate(decisions, folder, write)
            try:
                return judge.score(folder, not changes_a_value(decisions), report)
            except TamizError as error:
                raise RuntimeError(f"the built model does not run: {error}") from error

        limit = judge.limit(judge.goal)
        return cls(judge, math.inf if limit is None else limit, score, fill)

    def measure(
        self,
        decisions: Sequence[Decision],
        *,
        predicted: float | None,
        refused: Sequence[str] = (),
        **about: Any,
    ) -> Quality:
        """What a candidate loses; the trial is kept for the report.

        Args:
            decisions: The candidate.
            predicted: Predicted loss.
            refused: Ids of the sites that do without their technique.
            about: Further attributes of the trial.
        """
        quality = self.score(decisions)
        measured = {figure.name: rounded(figure.value) for figure in quality.shown}
        domains = {domain.name: _reported(domain) for domain in quality.domains}
        about |= {"used": rounded(quality.used), "domains": domains, "holds": quality.used <= 1}
        self.trials.append(self.report(predicted, refused, **about, **measured))
        return quality

    def report(
        self, predicted: float | None, refused: Sequence[str] = (), **about: Any
    ) -> TrialReport:
        """What a report says of a trial with a predicted loss."""
        loss = None if predicted is None else self.judge.reported(predicted)
        return TrialReport(
            refused=list(refused), predicted=None if loss is None else rounded(loss), **about
        )


def write_candidate(decisions: Sequence[Decision], folder: Path, write: Write) -> None:
    """Writes the bundle of a candidate; what is in the folder is replaced."""
    shutil.rmtree(folder, ignore_errors=True)
    with naming(folder):
        folder.mkdir(parents=True)
        write(decisions, folder)


def _reported(domain: DomainFigures) -> DomainReport:
    """A domain as reports have it."""
    figures = {figure.name: rounded(figure.value) for figure in domain.figures}
    return DomainReport(windows=domain.windows, **figures)


def rounded(value: float) -> float | None:
    """Four digits; None for what is not a number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
