"""A decider that spends the limits of a build where they pay: one solver for all sites.

    predict: the rungs of every weight      solve: one rung for each      measure: the whole model

The loss of a choice is predicted as f · Σ loss(rung), with f = 1.4 at first. Each trial builds the
choice and measures it on windows that the prediction has not read; f becomes measured / predicted.
The search ends when a trial uses 90 % of the limit and does not exceed it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tamiz.api.technique import Resource, Technique
from tamiz.building.decide.decider import CandidateTools, Tools
from tamiz.building.fit.selection import Slot, refused
from tamiz.building.search import what_pays
from tamiz.building.search.candidates import (
    JOINED,
    Candidates,
    applied,
    judging,
    judging_windows,
)
from tamiz.building.search.encoder_candidates import EncoderCandidates, texts_of
from tamiz.building.search.limit_search import LimitSearch
from tamiz.building.search.problem import Problem, applicable, rest
from tamiz.building.search.solver import Goal
from tamiz.building.search.weight_options import LadderMaker
from tamiz.calibration import file as calibrations
from tamiz.calibration.file import Calibration
from tamiz.files.errors import TamizError
from tamiz.planning.choice import Choice, step_rows
from tamiz.planning.plan import Plan, acting_context, make_plan
from tamiz.planning.policy import Gating, Rules
from tamiz.planning.resolver import SitePlan
from tamiz.reporting.gate import Paying, Trial, WholeModelGate
from tamiz.survey.backward import UnknownOpError
from tamiz.survey.sensitivity import kept_of_text, sensitivities, windows_at_once
from tamiz.survey.survey import Survey
from tamiz.system import machine
from tamiz.system.cores import cores

#: Most windows of a calibration that predictions of losses read, and tokens that are read at once:
#: few enough that two such parts of a model of 1.5 billion parameters fit into `_MEMORY`.
_CHOOSING, _PART = 4, 256
#: Bytes that the activations of parts which are read side by side may take.
_MEMORY = 6 << 30
#: Bytes that what is kept of an encoder's texts may take, and fewest texts.
_KEPT, _FEWEST = 1 << 30, 4
#: The whole model is measured, so the gate of a single tensor accepts any fit.
_ANYTHING = Gating("cos_w", None, None, None)


@dataclass
class Allocation:
    """A decider that solves for the limits of a build; see `tamiz.building.decide.decider.Decider`.

    Attributes:
        techniques: The declared techniques by name.
        choices: Techniques that the user requested.
        on_conflict: ``error`` or ``drop``; see `tamiz.planning.plan.make_plan`.
        calibration_file: A calibration's file.
        strip_dense: Whether dense weights are removed.
        goal: The limits.
        keep: Folder that gets the bundles of a frontier's measured points; None: they are removed.
        off: Names of techniques that the user switched off.
    """

    techniques: Mapping[str, Technique]
    choices: Sequence[Choice]
    on_conflict: str
    calibration_file: Path | None
    strip_dense: bool
    goal: Goal
    keep: Path | None = None
    off: frozenset[str] = frozenset()
    _problem: Problem | None = None

    def calibration(self, tools: Tools) -> Calibration | None:
        """The calibration that was given, or one of the model's own text.

        Raises:
            TamizError: A limit does not apply to the model, or nothing can be chosen. Or a speed is
                requested, and this machine was not measured.
        """
        self.goal = applicable(self.goal, tools.survey)
        self._check_offering()
        if self.goal.min_tok_s is not None and machine.load() is None:
            raise TamizError(
                "--min-tok-s: this machine was not measured, run 'tamiz doctor --profile' first"
            )
        if self.calibration_file is not None:
            return calibrations.load(self.calibration_file, tools.survey.bundle)
        return tools.calibrate_on_own_text()

    def plan(self, tools: Tools, known: Calibration | None) -> Plan:
        """The plan of the first solution.

        Raises:
            TamizError: The limits cannot be reached, no technique can act, or no backward pass is
                known for the model.
        """
        assert known is not None
        survey = tools.survey
        # An encoder takes no decode steps, whose speed a profile predicts.
        profile = machine.load() if survey.gives_logits else None
        parts = self._parts(survey, known)
        try:
            side_by_side = min(cores(), windows_at_once(survey, len(parts[0]), _MEMORY))
            found = sensitivities(survey, parts, tools.progress, side_by_side)
        except UnknownOpError as error:
            raise TamizError(
                f"{survey.bundle.path}: losses cannot be predicted, as no backward pass is known "
                f"through {error}; build with --policy or --recipe instead of limits"
            ) from error
        owners, others = self._offering()
        goal = self.goal
        ladders = LadderMaker(
            survey=survey,
            owners=owners,
            bits="bits" in goal.allow,
            others=others,
            forced=frozenset(goal.force),
            sensitivities=found,
            known=known,
            profile=profile,
            context=goal.context,
            progress=tools.progress,
        ).ladders()
        if not ladders:
            raise TamizError(
                f"{survey.bundle.path}: no technique that a build within limits may choose can act "
                "there; name others with --allow"
            )
        fixed = rest(survey, ladders, profile, goal.context)
        of_texts, timed = not survey.gives_logits, profile is not None
        self._problem = Problem(goal, ladders, fixed, of_texts, timed)
        self._problem.check()
        names = {choice.technique.name for choice in (*owners, *others)}
        kept = [c for c in self.choices if c.requested and c.technique.name not in names]
        base = Rules(strip=self.strip_dense, gating=_ANYTHING, gated=True)
        plan = make_plan(survey.sites, [*kept, *owners], self.on_conflict, None, base)
        chosen = self._problem.chosen(self._problem.solve(self._problem.first))
        sites = tuple(_with_chosen(at, chosen, names) for at in plan.sites)
        return replace(plan, sites=sites, choices=(*plan.choices, *others))

    def gate(
        self,
        slots: list[Slot],
        tools: Tools,
        known: Calibration | None,
        candidates: CandidateTools,
    ) -> tuple[list[Slot], WholeModelGate]:
        """Measures the first solution, corrects the prediction and solves again.

        Raises:
            TamizError: No trial meets the limits.
        """
        from tamiz.evaluation.scores import Reference
        from tamiz.runtime.model import Model

        assert known is not None
        assert self._problem is not None
        if not tools.survey.gives_logits:
            return self._gate_encoder(slots, tools, known, candidates)
        dense = Model.load(tools.survey.bundle.path, threads=1)
        plans = (*self._problem.plans, *(slot.site_plan for slot in slots))
        length = acting_context(tools.survey, plans, JOINED, dense.limit)
        windows = judging_windows(known, length)
        rows, folder = self._step_rows(slots), tools.work / "candidate"
        reference = Reference(dense, tools.work)
        scored = Candidates(reference, windows, rows, folder, candidates.write, tools.progress)
        offered = self._problem.techniques
        search = LimitSearch(self._problem, offered, slots, scored.score, candidates.fill)
        pays: list[Paying] = []
        if self.goal.points:
            search.frontier(lambda trial: self._keep(trial, folder))
        else:
            search.run()
            search, pays = self._paying(search, candidates, tools.work)
        return slots if search.best is None else search.best, WholeModelGate(
            max_dppl=self.goal.max_dppl,
            max_kl=self.goal.max_kl,
            text="calibration" if self.calibration_file is not None else "the model's own",
            windows=len(windows),
            window_tokens=len(windows[0]),
            decode=rows is not None,
            trials=search.trials,
            built=search.built,
            paying=pays,
        )

    def _parts(self, survey: Survey, known: Calibration) -> list[list[int]]:
        """What predictions of losses read: parts of windows, or texts of an encoder."""
        windows = _evenly(known.choosing, _CHOOSING)
        if not survey.gives_logits:
            texts = texts_of(windows, survey.bundle).tolist()
            most = _KEPT // max(1, kept_of_text(survey, len(texts[0])))
            return _evenly(texts, max(_FEWEST, most))
        return [
            window[start : start + _PART]
            for window in windows
            for start in range(0, len(window), _PART)
        ]

    def _gate_encoder(
        self, slots: list[Slot], tools: Tools, known: Calibration, candidates: CandidateTools
    ) -> tuple[list[Slot], WholeModelGate]:
        """`gate` for an encoder: no technique beside formats is chosen."""
        from tamiz.runtime.embedding.encoder import Encoder
        from tamiz.runtime.load import load_model

        assert self._problem is not None
        dense, folder = load_model(tools.survey.bundle.path, threads=1), tools.work / "candidate"
        assert isinstance(dense, Encoder)
        windows = judging(known)
        scored = EncoderCandidates(dense, windows, folder, candidates.write, tools.progress)
        offered = self._problem.techniques
        search = LimitSearch(self._problem, offered, slots, scored.score, candidates.fill)
        search.run()
        kept = slots if search.best is None else search.best
        return kept, scored.gate(search.trials, search.built, self.goal.min_cosine)

    def _keep(self, trial: Trial, candidate: Path) -> None:
        """Moves a candidate to the folder that keeps them, named by its number and its MB."""
        if self.keep is not None and trial.bytes is not None:
            self.keep.mkdir(parents=True, exist_ok=True)
            number = sum(1 for _ in self.keep.iterdir()) + 1
            shutil.move(candidate, self.keep / f"{number:02}-{trial.bytes / 1e6:.1f}MB")

    def _paying(
        self, search: LimitSearch, candidates: CandidateTools, work: Path
    ) -> tuple[LimitSearch, list[Paying]]:
        """The search without the techniques that make the model neither smaller nor faster."""
        assert self._problem is not None
        acting = {c.technique.name for c in self._offering()[1]} - set(self.goal.force)
        found = []
        for name in sorted(acting):
            problem = search.problem
            if name not in problem.applied(search.picks):
                reason = what_pays.prediction(problem, search.picks, name)
                found.append(Paying(technique=name, applied=False, reason=reason))
            elif self.goal.measured:
                search, measured = self._measured(search, name, candidates, work)
                found.append(measured)
        return search, found

    def _measured(
        self, search: LimitSearch, name: str, candidates: CandidateTools, work: Path
    ) -> tuple[LimitSearch, Paying]:
        """The better of a search and one without a technique that it applies, and why."""
        # Trials take minutes: what beats a wide prediction needs none.
        other = search.predicted(search.problem.without(name))
        pays, reason = self._compare(search, other, "predicted best", candidates, work)
        if not pays:
            try:
                other.run()
            except TamizError:
                pays, reason = True, "no choice without it is within the limits"
            else:
                pays, reason = self._compare(search, other, "best", candidates, work)
        return search if pays else other, Paying(technique=name, applied=pays, reason=reason)

    def _compare(
        self,
        ours: LimitSearch,
        theirs: LimitSearch,
        which: str,
        candidates: CandidateTools,
        work: Path,
    ) -> tuple[bool, str]:
        """Whether the best choice of a search is smaller or faster than that of another, and by
        how much; `which` says how the other one is the best."""
        places = {}
        for name, way in (("with", ours), ("without", theirs)):
            places[name] = work / name
            shutil.rmtree(places[name], ignore_errors=True)
            places[name].mkdir()
            candidates.write(way.best or [], places[name])
        ratio = what_pays.speed_ratio(places["with"], places["without"], self.goal.context)
        sizes = [way.problem.spent(way.picks).bytes for way in (ours, theirs)]
        reason = (
            f"measured {ratio:.2f} × as fast as the {which} choice without it, "
            f"{sizes[0] / 1e6:.1f} instead of {sizes[1] / 1e6:.1f} MB"
        )
        return ratio > 1 or sizes[0] < sizes[1], reason

    def refused(self, slots: Sequence[Slot]) -> dict[str, list[str]]:
        """Techniques that their own fit or their rewrite refused."""
        return refused(slots)

    def _step_rows(self, slots: Sequence[Slot]) -> int | None:
        """Tokens of the steps that show what any trial may lose; None where prompts do."""
        assert self._problem is not None
        offered = [choice for plan in self._problem.plans for choice in plan.choices]
        return step_rows([*applied(slots), *offered])

    def _check_offering(self) -> None:
        """Refuses limits that leave nothing to choose from.

        Raises:
            TamizError: A technique is switched off and named, or no technique is left.
        """
        if named := sorted(self.off & {*self.goal.allow, *self.goal.force}):
            raise TamizError(
                f"--{named[0]}=off: found the technique in --allow or --force as well; remove one "
                "of the two"
            )
        if not any(self._offering()):
            off = [n for n, t in self.techniques.items() if n in self.off and t.options is not None]
            because = " with " + " and ".join(f"--{name}=off" for name in off) if off else ""
            raise TamizError(
                f"a build within limits has nothing to choose from{because}; name techniques with "
                "--allow"
            )

    def _offering(self) -> tuple[list[Choice], list[Choice]]:
        """The techniques whose rungs are chosen from: those that store weights, and others."""
        given = {choice.technique.name: choice for choice in self.choices}
        allowed = {*self.goal.allow, *self.goal.force}
        owners, others = [], []
        for name, technique in self.techniques.items():
            if technique.options is None or name in self.off:
                continue
            choice = replace(given.get(name) or Choice.of(technique, {}), requested=True)
            if any(claim.resource is Resource.WEIGHTS for claim in technique.claims):
                owners.append(choice)
            elif name in allowed:
                others.append(choice)
        return owners, others


def _evenly(windows: Sequence[list[int]], most: int) -> list[list[int]]:
    """At most so many of some windows, evenly spaced."""
    count = min(most, len(windows))
    return [windows[n * len(windows) // count] for n in range(count)]


def _with_chosen(at: SitePlan, chosen: Mapping[str, SitePlan], names: Collection[str]) -> SitePlan:
    """A site's plan with the techniques of the solution."""
    kept = tuple(choice for choice in at.choices if choice.technique.name not in names)
    found = chosen[at.site.id].choices if at.site.id in chosen else ()
    return replace(at, choices=(*found, *kept), fallbacks=())
