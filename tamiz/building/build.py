"""Builds a bundle: recognise → plan → fit → gate → rewrite → fuse → save → check against dense."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.api.statistics import Sensitivity
from tamiz.building.decide.by_policy import ByPolicy
from tamiz.building.decide.decider import CandidateTools, Course, Decider, DefaultText, Tools
from tamiz.building.decide.replay import Replay
from tamiz.building.decide.within_limits import WithinLimits
from tamiz.building.decision import Decision, accepted, leave_out
from tamiz.building.fit.fitter import Fitter
from tamiz.building.fit.workers import workers
from tamiz.building.options import Options
from tamiz.building.work import Clock, empty, held_alone
from tamiz.building.write.equivalence import Equivalence
from tamiz.building.write.report import BuildResult, make_report
from tamiz.building.write.rewriting import Written, constant_bytes, write_model
from tamiz.calibration.calibration import Calibration
from tamiz.calibration.imatrix import read_imatrix
from tamiz.files import bundle as bundles
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, UnwritableError
from tamiz.files.outputs import unshare
from tamiz.files.scratch import WRITTEN, is_scratch, restore
from tamiz.files.text_file import write_json
from tamiz.planning.choice import Choice
from tamiz.planning.plan import describe
from tamiz.reporting.page import render
from tamiz.reporting.reader import read_report
from tamiz.reporting.report import Report
from tamiz.survey import gradients
from tamiz.survey.backward import UnknownOpError
from tamiz.survey.survey import Survey, survey
from tamiz.system.progress import Progress, silent

if TYPE_CHECKING:
    from tamiz.api.passes import Note
    from tamiz.plugins import Plugins


_DEFAULTS = Options()


def build(
    source: str | Path | Survey,
    target: str | Path,
    choices: Iterable[Choice],
    plugins: Plugins,
    options: Options = _DEFAULTS,
    *,
    progress: Progress = silent,
) -> Report:
    """Builds a dense bundle into one that is smaller and runs faster.

    Fits lie in ``.<target>.work`` beside the target while the build runs. A build that was
    interrupted, crashed or had no more space leaves that folder, and `Options.resume` goes on
    with it; bad input leaves nothing.

    Args:
        source: Folder of a dense bundle, or its survey where it is known.
        target: Folder of the new bundle; it appears when everything went well.
        choices: Techniques to use wherever they can act; see `tamiz.planning.plan.choose`.
        plugins: The loaded plugins.
        options: How to decide and work.
        progress: Called with every step.

    Returns:
        The report, with ``seconds`` by step and attempt. The bundle's copy lacks them, so that
        equal builds have equal bytes.

    Raises:
        TamizError: `source` is no dense bundle, its model, the policy, the report or the
            calibration cannot be read, the techniques are in conflict, `target` must not be
            written, or the built model is another one than the dense model; see
            `tamiz.survey.self_check`.
        RuntimeError: The built model does not run.
    """
    surveyed = source if isinstance(source, Survey) else None
    dense = source.bundle if isinstance(source, Survey) else Bundle.open_dense(source)
    target = Path(target)
    bundles.check_target(target, dense.path)
    decider = _decider(list(choices), plugins, options)
    work = target.resolve().with_name(f".{target.resolve().name}.work")
    with held_alone(work, target):
        restore(work / WRITTEN, target.resolve())
        if not options.resume:
            empty(work)
        try:
            report = _Build(dense, target, work, decider, plugins, options, progress).run(surveyed)
        except BaseException as error:
            refused = isinstance(error, TamizError) and not isinstance(error, UnwritableError)
            if (refused and not options.resume) or not any(work.iterdir()):
                shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(work, ignore_errors=True)
    return report


def _decider(choices: list[Choice], plugins: Plugins, options: Options) -> Decider:
    """The decider: an earlier build's report, a choice within limits, or policy and flags."""
    techniques = plugins.techniques()
    if options.report is not None:
        return Replay(options.report, read_report(options.report), techniques)
    if options.goal is not None:
        return WithinLimits(techniques, choices, options, options.goal)
    return ByPolicy(techniques, choices, options)


@dataclass
class _Build:
    """One build."""

    dense: Bundle
    target: Path
    work: Path
    decider: Decider
    plugins: Plugins
    options: Options
    progress: Progress
    clock: Clock = field(default_factory=Clock)

    def run(self, surveyed: Survey | None) -> Report:
        """Everything from the dense bundle, or its survey, to the built one."""
        clock = self.clock
        self.progress("recognise", 0, 1)
        with clock("recognise"):
            surveyed = surveyed or survey(self.dense, self.plugins)
        equivalence = Equivalence(surveyed, self.plugins, next(iter(self.options.samples), None))
        if self.options.check:
            self.progress("check", 0, 1)
            with clock("check"):
                equivalence.check_passes()
        with clock("recognise"):
            course = self.decider.start(self._tools(surveyed))
        with workers(self.options.backend, self.options.jobs) as crew:
            with clock("weigh"):
                sensitivities, notes = self._sensitivities(surveyed, course)
            fitter = Fitter(
                surveyed,
                course.plan,
                course.calibration,
                sensitivities,
                self.work / "fits",
                crew,
                self.progress,
            )
            with clock("fit"):
                decisions = fitter.decisions()
            with clock("gate"):
                candidates = self._candidates(surveyed, course, fitter)
                decisions, gate = course.gate(decisions, candidates)
        with bundles.writing(self.target, self.work / WRITTEN) as folder:
            self.progress("save", 0, 1)
            with clock("save"):
                written = self._write(surveyed, course, decisions, folder, checked=True)
            decisions = leave_out(decisions, written.refused)
            self.progress("check", 0, 1)
            with clock("check"):
                applied = [fit for fits in accepted(decisions).values() for fit in fits]
                check = equivalence.check_build(folder, applied)
            result = BuildResult(
                survey=surveyed,
                plan=course.plan,
                calibration=course.calibration,
                domains=self._domains(course.calibration),
                decisions=decisions,
                refused=course.refused(decisions),
                notes=[*notes, *written.notes],
                constant_bytes=(constant_bytes(surveyed.model), written.constant_bytes),
                check=check,
                gate=gate,
                seconds=clock.seconds,
            )
            report = make_report(result)
            _write_report(folder, report.without_seconds())
            if not is_scratch(self.dense.path):
                unshare(folder)
            self._manifest(folder, course, decisions, written)
        self.progress("done", 1, 1)
        return report

    def _tools(self, surveyed: Survey) -> Tools:
        file, imatrix = self.options.imatrix, None
        if file is not None:
            imatrix = read_imatrix(file, surveyed, self.plugins)
        text = DefaultText(self._names(), self.options.texts)
        calibration, samples = self.options.calibration, self.options.samples
        return Tools(surveyed, self.work, calibration, text, imatrix, samples, self.progress)

    def _names(self) -> tuple[str, ...]:
        """The domains that are read where no calibration is given."""
        return self.decider.domains if isinstance(self.decider, Replay) else self.options.domains

    def _domains(self, calibration: Calibration | None) -> tuple[str, ...] | None:
        """The domains that a calibration read where no file was given; one of an imatrix alone
        read none."""
        read = calibration is not None and bool(calibration.windows)
        return self._names() if read and self.options.calibration is None else None

    def _sensitivities(
        self, surveyed: Survey, course: Course
    ) -> tuple[Mapping[str, Sensitivity], list[Note]]:
        """What errors at the inputs of sites cost, where a fit reads it; or why it is not known."""
        configs = (choice.config for site in course.plan.sites for choice in site.choices)
        calibration = course.calibration
        if (
            not any(config.reads_sensitivity for config in configs)
            or calibration is None
            or not calibration.tokens
        ):
            return {}, []
        from tamiz.api.passes import Note

        try:
            known = calibration.fitting
            windows = [list(w.tokens) for w in known] or calibration.tokens
            return gradients.sensitivities(surveyed, windows, self.progress), []
        except UnknownOpError as error:
            return {}, [Note("gradients", "", f"no backward pass is known through {error}")]

    def _candidates(self, surveyed: Survey, course: Course, fitter: Fitter) -> CandidateTools:
        def write(candidate: Sequence[Decision], folder: Path) -> None:
            written = self._write(surveyed, course, candidate, folder)
            self._manifest(folder, course, candidate, written)

        return CandidateTools(write, fitter.fill, self.work / "candidate", self.progress)

    def _write(
        self,
        surveyed: Survey,
        course: Course,
        decisions: Sequence[Decision],
        folder: Path,
        *,
        checked: bool = False,
    ) -> Written:
        plan, refused, fits = course.plan, course.refused(decisions), accepted(decisions)
        return write_model(surveyed, plan, fits, refused, self.plugins, folder, checked=checked)

    def _manifest(
        self, folder: Path, course: Course, decisions: Sequence[Decision], written: Written
    ) -> None:
        refused = course.refused(decisions)
        bundles.write_manifest(
            folder,
            "built",
            self.dense.manifest.source,
            describe(course.plan.choices),
            course.plan.policy,
            written.kv_cache,
            {site: ",".join(names) for site, names in refused.items()},
            equal_runs=written.equal_runs,
            step_techniques=written.step_techniques,
        )


def _write_report(folder: Path, report: Report) -> None:
    """Writes a report, and its page."""
    write_json(folder / bundles.REPORT, report.as_json())
    (folder / bundles.REPORT_PAGE).write_text(render(report), "utf-8")
