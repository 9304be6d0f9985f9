"""Builds a bundle: recognise → plan → fit → gate → rewrite → fuse → save → check against dense."""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tamiz.api.site import SiteKind
from tamiz.building.candidates import Candidates, Progress, decodes, gate_windows
from tamiz.building.dial import hold_and_turn, turnable
from tamiz.building.rebuild import plan_from_report, unsafe_in_report
from tamiz.building.report import make_report, without_seconds
from tamiz.building.rewriting import Written, constant_bytes, write_model
from tamiz.building.selection import Slot, Workshop, accepted, leave_out, unsafe
from tamiz.building.whole_model import Gated, Trials, lossy
from tamiz.building.workers import workers
from tamiz.calibration import file as calibrations
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.calibration.file import Calibration
from tamiz.files import bundle as bundles
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError, UnwritableError
from tamiz.files.text_file import write_json
from tamiz.planning.plan import Plan, describe, make_plan
from tamiz.planning.policy import Policy, Rules, Tuning, read_policy
from tamiz.planning.resolver import Choice
from tamiz.reporting.page import render
from tamiz.survey import gradients
from tamiz.survey.backward import UnknownOpError
from tamiz.survey.gradients import Loss
from tamiz.survey.survey import Survey, survey

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
        autotune: Whether to try several configurations where the policy does not say.
        strip_dense: Whether dense weights go where the policy does not say.
        max_dppl: Largest accepted Δppl of the whole model; None for no such gate.
        backend: Who drives the processes that fit; see `tamiz.building.workers`.
        jobs: Processes that fit, where the backend does not decide.
        resume: Whether to go on with what an interrupted build of the same target has left.
        report: A report whose decisions to follow instead of making them.
    """

    on_conflict: str = "error"
    policy: Path | None = None
    calibration: Path | None = None
    autotune: bool = False
    strip_dense: bool = True
    max_dppl: float | None = 0.02
    backend: str = "loky"
    jobs: int = 1
    resume: bool = False
    report: Path | None = None


_DEFAULTS = Options()


def build(
    source: str | Path,
    target: str | Path,
    choices: Iterable[Choice],
    plugins: Plugins,
    options: Options = _DEFAULTS,
    *,
    progress: Progress = lambda what, done, total: None,
) -> dict[str, Any]:
    """Builds a dense bundle into one that is smaller and runs faster.

    Fits lie in ``.<target>.work`` beside the target while the build runs. A build that was
    interrupted, crashed or had no more space leaves that folder, and `Options.resume` goes on
    with it; bad input leaves nothing.

    Args:
        source: Folder of a dense bundle.
        target: Folder of the new bundle; it appears when everything went well.
        choices: Techniques to use wherever they can act; see `tamiz.planning.plan.choose`.
        plugins: The loaded plugins.
        options: How to decide and work.
        progress: Told about every step.

    Returns:
        The report, with ``seconds`` by step and attempt. The bundle's copy lacks them, so that
        equal builds have equal bytes.

    Raises:
        TamizError: `source` is no dense bundle, its model, the policy or the calibration cannot be
            read, the techniques are in conflict, or `target` must not be written.
        RuntimeError: The built model does not run, or gives other than finite numbers.
    """
    source, target = Path(source), Path(target)
    dense = Bundle.open_dense(source)
    bundles.check_target(target, source)
    work = target.resolve().with_name(f".{target.resolve().name}.work")
    with _alone(work, target):
        if not options.resume:
            _empty(work)
        try:
            report = _Build(dense, target, work, list(choices), plugins, options, progress).run()
        except BaseException as error:
            refused = isinstance(error, TamizError) and not isinstance(error, UnwritableError)
            if (refused and not options.resume) or not any(work.iterdir()):
                shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(work, ignore_errors=True)
    return report


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
    choices: list[Choice]
    plugins: Plugins
    options: Options
    progress: Progress
    clock: _Clock = field(default_factory=_Clock)

    def run(self) -> dict[str, Any]:
        """Everything from the dense bundle to the built one."""
        options, clock = self.options, self.clock
        self.progress("recognise", 0, 1)
        with clock("recognise"):
            found = survey(self.dense, self.plugins)
            known = self._calibration()
            plan, policy = self._plan(found, known)
        with workers(options.backend, options.jobs) as crew:
            with clock("weigh"):
                losses, notes = self._losses(found, plan, known)
            folder = self.work / "fits"
            workshop = Workshop(found, plan, known, losses, folder, crew, self.progress)
            with clock("fit"):
                slots = workshop.slots()
            with clock("gate"):
                gated, gate = self._gate(found, plan, workshop, slots, known)
        with bundles.writing(self.target, self.work / "bundle") as folder:
            self.progress("save", 0, 1)
            with clock("save"):
                written = self._write(found, plan, gated.slots, folder)
            slots = leave_out(gated.slots, written.refused)
            self.progress("check", 0, 1)
            with clock("check"):
                check = self._check(found, folder)
            report = make_report(
                asdict(self.dense.manifest.source),
                plan,
                policy,
                known,
                slots,
                [*found.notes, *notes, *written.notes],
                (constant_bytes(found.model), written.constant_bytes),
                {site.id: found.weight_bytes(site) for site in found.sites},
                check,
                gate,
            )
            quiet = without_seconds(report)
            write_json(folder / bundles.REPORT, quiet)
            (folder / bundles.REPORT_PAGE).write_text(render(quiet), "utf-8")
            self._manifest(folder, plan, slots, written)
        self.progress("done", 1, 1)
        return {**report, "seconds": clock.seconds}

    def _calibration(self) -> Calibration | None:
        """The calibration that was given, or one of the model's own text where it is needed."""
        if self.options.calibration is not None:
            return calibrations.load(self.options.calibration, self.dense)
        needed = any(choice.technique.calibrated for choice in self.choices)
        if not needed or self.options.report is not None:
            return None
        file = self.work / "calibration.safetensors"
        return calibrate_bundle(self.dense.path, file, self.plugins, progress=self.progress)

    def _plan(self, found: Survey, known: Calibration | None) -> tuple[Plan, Policy | None]:
        options, techniques = self.options, self.plugins.techniques()
        if options.report is not None:
            sites = found.sites
            return plan_from_report(options.report, self.dense, sites, techniques, known), None
        policy = None
        if options.policy is not None:
            policy = read_policy(options.policy, techniques, found.sites)
        base = Rules(strip=options.strip_dense, tuning=Tuning(enabled=options.autotune))
        return make_plan(found.sites, self.choices, options.on_conflict, policy, base), policy

    def _losses(
        self, found: Survey, plan: Plan, known: Calibration | None
    ) -> tuple[Mapping[str, Loss], list[Note]]:
        """What errors at the inputs of sites cost, where a fit reads it; or why nobody knows."""
        asked = any(choice.config.informed for site in plan.sites for choice in site.choices)
        if not asked or known is None or not known.tokens:
            return {}, []
        from tamiz.api.passes import Note

        try:
            return gradients.losses(found, known.tokens, self.progress), []
        except UnknownOpError as error:
            return {}, [Note("gradients", "", f"no way back is known through {error}")]

    def _gate(
        self,
        found: Survey,
        plan: Plan,
        workshop: Workshop,
        slots: list[Slot],
        known: Calibration | None,
    ) -> tuple[Gated, dict[str, Any]]:
        """Holds the whole model to its budget; and what the report says of that."""
        budget = self.options.max_dppl
        about: dict[str, Any] = {"max_dppl": budget, "text": None, "skipped": None}
        about |= {"trials": [], "result": None}
        skipped = None
        if self.options.report is not None:
            skipped = "the decisions are those of a report"
        elif budget is None:
            skipped = "switched off"
        elif not lossy(slots):
            skipped = "nothing that was applied loses anything"
        if skipped is None:
            from tamiz.evaluation.evaluate import Reference
            from tamiz.runtime.model import Model

            try:
                reference = Model.load(self.dense.path, threads=1)
            except TamizError as error:
                skipped = f"the dense model cannot be scored: {error}"
        if skipped is not None or budget is None:
            return Gated(slots, []), {**about, "skipped": skipped}

        def write(candidate: Sequence[Slot], folder: Path) -> None:
            written = self._write(found, plan, candidate, folder)
            self._manifest(folder, plan, candidate, written)

        decode = decodes(slots)
        long = decode or bool(turnable(slots))
        windows = gate_windows(reference, known, long, self.progress)
        scored = self.work / "candidate"
        scores = Reference(reference, self.work)
        candidates = Candidates(scores, windows, decode, scored, write, self.progress)
        trials = Trials(math.log1p(budget), candidates.score, workshop.fill)
        gated = hold_and_turn(slots, trials)
        own = known is None or self.options.calibration is None
        about["text"] = "the model's own" if own else "calibration"
        about |= {"windows": len(windows), "window_tokens": len(windows[0]), "decode": decode}
        about |= {"trials": gated.trials, "result": gated.result}
        return gated, about

    def _write(self, found: Survey, plan: Plan, slots: Sequence[Slot], folder: Path) -> Written:
        return write_model(found, plan, accepted(slots), self._unsafe(slots), self.plugins, folder)

    def _unsafe(self, slots: Sequence[Slot]) -> dict[str, str]:
        if self.options.report is not None:
            return unsafe_in_report(self.options.report)
        return unsafe(slots)

    def _check(self, found: Survey, folder: Path) -> dict[str, float]:
        from tamiz.building.selfcheck import compare

        rows = [site.out_features for site in found.sites if site.kind == SiteKind.EMBEDDING]
        return compare(self.dense.model, folder / bundles.MODEL, min(rows, default=2))

    def _manifest(self, folder: Path, plan: Plan, slots: Sequence[Slot], written: Written) -> None:
        bundles.write_manifest(
            folder,
            "built",
            self.dense.manifest.source,
            describe(plan.choices),
            plan.policy,
            written.kv_cache,
            self._unsafe(slots),
        )
