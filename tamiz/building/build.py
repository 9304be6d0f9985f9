"""Builds a bundle: recognise → plan → fit → gate → rewrite → fuse → save → check against dense."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.api.site import SiteKind
from tamiz.api.statistics import Sensitivity
from tamiz.building.decide.by_policy import Search
from tamiz.building.decide.decider import CandidateTools, Decider, Tools
from tamiz.building.decide.replay import Replay
from tamiz.building.decide.within_limits import Allocation
from tamiz.building.fit.selection import Fitter, Slot, accepted, leave_out
from tamiz.building.fit.workers import workers
from tamiz.building.search.solver import Goal
from tamiz.building.write.report import Outcome, make_report
from tamiz.building.write.rewriting import Written, constant_bytes, write_model
from tamiz.calibration.file import Calibration
from tamiz.calibration.imatrix import read_imatrix, weighed_by
from tamiz.files import bundle as bundles
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, UnwritableError
from tamiz.files.scratch import WRITTEN, restore
from tamiz.files.text_file import write_json
from tamiz.planning.choice import Choice
from tamiz.planning.plan import Plan, describe
from tamiz.reporting.gate import WholeModelGate
from tamiz.reporting.page import render
from tamiz.reporting.reader import read_report
from tamiz.reporting.report import Report
from tamiz.survey import gradients
from tamiz.survey.backward import UnknownOpError
from tamiz.survey.survey import Survey, survey
from tamiz.system.progress import Progress

if TYPE_CHECKING:
    from tamiz.api.passes import Note
    from tamiz.plugins import Plugins


@dataclass(frozen=True)
class Options:
    """How a build decides and works.

    Attributes:
        on_conflict: ``error`` or ``drop``; see `tamiz.planning.plan.make_plan`.
        policy: A policy's file.
        calibration: A calibration's file.
        imatrix: A file whose mean squared inputs replace those of the calibration.
        autotune: Whether to try several configurations where the policy does not say.
        strip_dense: Whether dense weights go where the policy does not say.
        max_dppl: Largest accepted Δppl of the whole model; None for no such gate.
        min_cosine: Smallest accepted mean cosine between embeddings of an encoder and of the built
            one; None for no such gate.
        backend: What runs the processes that fit; see `tamiz.building.fit.workers`.
        jobs: Processes that fit, where the backend does not decide.
        resume: Whether to go on with what an interrupted build of the same target has left.
        report: A report whose decisions to follow instead of making them.
        goal: Limits within which formats and techniques are chosen; replaces `max_dppl` and
            `min_cosine`. None for no choice.
        keep: Folder that gets the bundles of a frontier's measured points; None for none.
        off: Names of techniques that a build within limits must not choose.
        sample: ``.npz`` file with an input on which the built model is compared with the dense one;
            None to make one up.
    """

    on_conflict: str = "error"
    policy: Path | None = None
    calibration: Path | None = None
    imatrix: Path | None = None
    autotune: bool = False
    strip_dense: bool = True
    max_dppl: float | None = 0.02
    min_cosine: float | None = 0.99
    backend: str = "loky"
    jobs: int = 1
    resume: bool = False
    report: Path | None = None
    goal: Goal | None = None
    keep: Path | None = None
    off: frozenset[str] = frozenset()
    sample: Path | None = None


_DEFAULTS = Options()


def build(
    source: str | Path | Survey,
    target: str | Path,
    choices: Iterable[Choice],
    plugins: Plugins,
    options: Options = _DEFAULTS,
    *,
    progress: Progress = lambda what, done, total: None,
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
            `tamiz.building.write.self_check`.
        RuntimeError: The built model does not run.
    """
    surveyed = source if isinstance(source, Survey) else None
    dense = source.bundle if isinstance(source, Survey) else Bundle.open_dense(source)
    target = Path(target)
    bundles.check_target(target, dense.path)
    decider = _decider(list(choices), plugins, options)
    work = target.resolve().with_name(f".{target.resolve().name}.work")
    with _alone(work, target):
        restore(work / WRITTEN, target.resolve())
        if not options.resume:
            _empty(work)
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
    """The decider: an earlier build's report, a choice within limits, or a search."""
    techniques = plugins.techniques()
    if options.report is not None:
        return Replay(options.report, read_report(options.report), techniques, options.calibration)
    if options.goal is not None:
        return Allocation(
            techniques,
            choices,
            options.on_conflict,
            options.calibration,
            options.strip_dense,
            options.goal,
            options.keep,
            options.off,
        )
    return Search(
        techniques,
        choices,
        options.on_conflict,
        options.policy,
        options.calibration,
        options.autotune,
        options.strip_dense,
        options.max_dppl,
        options.min_cosine,
    )


@contextmanager
def _alone(work: Path, target: Path) -> Iterator[None]:
    """Makes the folder of the work and holds it; the system lets go when the process ends."""
    work.mkdir(parents=True, exist_ok=True)
    handle = os.open(work, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(handle), os.stat(work))
        except (BlockingIOError, FileNotFoundError):  # held, or just removed, by another build
            held = False
        if not held:
            raise TamizError(f"{target}: another build is writing it, expected one at a time")
        yield
    finally:
        os.close(handle)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


@dataclass
class _Clock:
    """Seconds spent, by what was done."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        spent = time.perf_counter() - start
        self.seconds[what] = round(self.seconds.get(what, 0.0) + spent, 3)


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
    clock: _Clock = field(default_factory=_Clock)

    def run(self, surveyed: Survey | None) -> Report:
        """Everything from the dense bundle, or its survey, to the built one."""
        clock = self.clock
        self.progress("recognise", 0, 1)
        with clock("recognise"):
            surveyed = surveyed or survey(self.dense, self.plugins)
            tools = Tools(surveyed, self.work, self.progress)
            known = self._known(tools)
            plan = self.decider.plan(tools, known)
        with workers(self.options.backend, self.options.jobs) as crew:
            with clock("weigh"):
                sensitivities, notes = self._sensitivities(surveyed, plan, known)
            folder = self.work / "fits"
            fitter = Fitter(surveyed, plan, known, sensitivities, folder, crew, self.progress)
            with clock("fit"):
                slots = fitter.slots()
            with clock("gate"):
                slots, gate = self._gate(tools, plan, fitter, slots)
        with bundles.writing(self.target, self.work / WRITTEN) as folder:
            self.progress("save", 0, 1)
            with clock("save"):
                written = self._write(surveyed, plan, slots, folder, checked=True)
            slots = leave_out(slots, written.refused)
            self.progress("check", 0, 1)
            with clock("check"):
                check = self._check(surveyed, slots, folder)
            outcome = Outcome(
                survey=surveyed,
                plan=plan,
                calibration=known,
                own_text=self._of_own_text(known),
                slots=slots,
                refused=self.decider.refused(slots),
                notes=[*surveyed.notes, *notes, *written.notes],
                constant_bytes=(constant_bytes(surveyed.model), written.constant_bytes),
                check=check,
                gate=gate,
                seconds=clock.seconds,
            )
            report = make_report(outcome)
            repeatable = report.without_seconds()
            write_json(folder / bundles.REPORT, repeatable.as_json())
            (folder / bundles.REPORT_PAGE).write_text(render(repeatable), "utf-8")
            self._manifest(folder, plan, slots, written)
        self.progress("done", 1, 1)
        return report

    def _known(self, tools: Tools) -> Calibration | None:
        """What is known of the inputs: the calibration, with the imatrix where one is given."""
        file = self.options.imatrix
        # Read first: the model may write a text for the calibration, which takes minutes.
        imatrix = None if file is None else read_imatrix(file, tools.survey, self.plugins)
        known = self.decider.calibration(tools)
        # Ids of sites may differ between versions of tamiz and of plugins.
        measured = {} if known is None else known.inputs
        if measured and not any(site.id in measured for site in tools.survey.sites):
            raise TamizError(
                f"{self.options.calibration}: measured {next(iter(measured))} and other sites that "
                f"{self.dense.path} does not have; run 'tamiz calibrate' again"
            )
        return known if imatrix is None else weighed_by(known, imatrix, tools.survey)

    def _of_own_text(self, known: Calibration | None) -> bool:
        """Whether the model wrote the text of a calibration; one of an imatrix alone has none."""
        return known is not None and bool(known.windows) and self.options.calibration is None

    def _sensitivities(
        self, surveyed: Survey, plan: Plan, known: Calibration | None
    ) -> tuple[Mapping[str, Sensitivity], list[Note]]:
        """What errors at the inputs of sites cost, where a fit reads it; or why it is not known."""
        configs = (choice.config for site in plan.sites for choice in site.choices)
        if (
            not any(config.reads_sensitivity for config in configs)
            or known is None
            or not known.tokens
        ):
            return {}, []
        from tamiz.api.passes import Note

        try:
            windows = known.choosing or known.tokens
            return gradients.sensitivities(surveyed, windows, self.progress), []
        except UnknownOpError as error:
            return {}, [Note("gradients", "", f"no backward pass is known through {error}")]

    def _gate(
        self, tools: Tools, plan: Plan, fitter: Fitter, slots: list[Slot]
    ) -> tuple[list[Slot], WholeModelGate]:
        def write(candidate: Sequence[Slot], folder: Path) -> None:
            written = self._write(tools.survey, plan, candidate, folder)
            self._manifest(folder, plan, candidate, written)

        candidates = CandidateTools(write, fitter.fill)
        return self.decider.gate(slots, tools, fitter.calibration, candidates)

    def _write(
        self,
        surveyed: Survey,
        plan: Plan,
        slots: Sequence[Slot],
        folder: Path,
        *,
        checked: bool = False,
    ) -> Written:
        refused, fits = self.decider.refused(slots), accepted(slots)
        return write_model(surveyed, plan, fits, refused, self.plugins, folder, checked=checked)

    def _check(self, surveyed: Survey, slots: Sequence[Slot], folder: Path) -> dict[str, float]:
        """Compares with the dense model; nothing where no valid input of it is known."""
        from tamiz.building.write.broken_pass import first_broken_pass
        from tamiz.building.write.self_check import DifferentModelError, Reference

        rows = [site.out_features for site in surveyed.sites if site.kind == SiteKind.EMBEDDING]
        vocabulary = min(rows, default=2)
        reference = Reference.of(self.dense.model, vocabulary, self.options.sample)
        if reference is None:
            return {}
        applied = [attempt for fits in accepted(slots).values() for attempt in fits]
        lossy = any(attempt.metrics.get("exact") != 1.0 for attempt in applied)
        built = folder / bundles.MODEL
        try:
            return reference.compare(built, techniques=bool(applied), lossy=lossy)
        except DifferentModelError as error:
            if reference.is_drawn:
                return {}
            broken = None if lossy else first_broken_pass(self.dense, self.plugins, reference)
            where = "" if broken is None else f" after the graph pass {broken}"
            raise TamizError(
                f"{self.dense.path}: {error}{where}; nothing was written. Switch off the plugin, "
                "and report it with the model"
            ) from error

    def _manifest(self, folder: Path, plan: Plan, slots: Sequence[Slot], written: Written) -> None:
        refused = self.decider.refused(slots)
        bundles.write_manifest(
            folder,
            "built",
            self.dense.manifest.source,
            describe(plan.choices),
            plan.policy,
            written.kv_cache,
            {site: ",".join(names) for site, names in refused.items()},
            equal_runs=written.equal_runs,
            step_techniques=written.step_techniques,
        )
