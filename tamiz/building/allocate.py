"""A decider that spends the limits of a build where they pay: one solver for all sites.

    predict: the rungs of every weight      solve: one rung for each      measure: the whole model

The loss of a choice is predicted as f · Σ loss(rung), with f = 1 at first. Each trial builds the
choice and measures it on windows that the prediction has not read; f becomes measured / predicted.
The search ends when a trial uses 90 % of the limit and does not exceed it.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tamiz.api.technique import Resource, Technique
from tamiz.building import paying
from tamiz.building.candidates import JOINED, Candidates, decodes, judging_windows
from tamiz.building.decider import CandidateTools, Tools
from tamiz.building.ladders import LadderMaker
from tamiz.building.problem import Problem, rest
from tamiz.building.selection import Slot, refused, slots_of
from tamiz.building.whole_model import Evaluate, Fill, rounded
from tamiz.calibration import file as calibrations
from tamiz.calibration.calibrate import calibrate_on_own_text
from tamiz.calibration.file import Calibration
from tamiz.files.errors import TamizError
from tamiz.planning import machine
from tamiz.planning.allocation import Goal
from tamiz.planning.choice import Choice
from tamiz.planning.machine import cores
from tamiz.planning.plan import Plan, acting_context, make_plan
from tamiz.planning.policy import Gating, Rules
from tamiz.planning.resolver import SitePlan
from tamiz.reporting.report import Paying, Trial, WholeModelGate
from tamiz.survey.backward import UnknownOpError
from tamiz.survey.sensitivity import sensitivities, windows_at_once

#: Largest number of trials, the share of a limit that a trial aims at, the share that ends the
#: search, and the largest factor between the losses of two trials.
_TRIALS, _AIM, _ENOUGH, _STEP = 6, 0.96, 0.9, 4.0
#: Most windows of a calibration that predictions of losses read.
_CHOOSING = 4
#: Bytes that the activations of windows which are read side by side may take.
_MEMORY = 6 << 30
#: Largest predicted loss of a frontier, in nats per token.
_MOST_LOSS = 0.5
#: The whole model is measured, so the gate of a single tensor accepts any fit.
_ANYTHING = Gating("cos_w", None, None, None)


@dataclass
class Allocation:
    """A decider that solves for the limits of a build; see `tamiz.building.decider.Decider`.

    Attributes:
        techniques: The declared techniques by name.
        choices: Techniques that the user requested.
        on_conflict: ``error`` or ``drop``; see `tamiz.planning.plan.make_plan`.
        calibration_file: A calibration's file.
        strip_dense: Whether dense weights are removed.
        goal: The limits.
    """

    techniques: Mapping[str, Technique]
    choices: Sequence[Choice]
    on_conflict: str
    calibration_file: Path | None
    strip_dense: bool
    goal: Goal
    _problem: Problem | None = None

    def calibration(self, tools: Tools) -> Calibration | None:
        """The calibration that was given, or one of the model's own text.

        Raises:
            TamizError: A speed is requested, and this machine was not measured.
        """
        if self.goal.min_tok_s is not None and machine.load() is None:
            raise TamizError(
                "--min-tok-s: this machine was not measured, run 'tamiz doctor --profile' first"
            )
        if self.calibration_file is not None:
            return calibrations.load(self.calibration_file, tools.survey.bundle)
        own = tools.work / "calibration.safetensors"
        return calibrate_on_own_text(tools.survey, own, tools.progress)

    def plan(self, tools: Tools, known: Calibration | None) -> Plan:
        """The plan of the first solution.

        Raises:
            TamizError: The limits cannot be reached, or no backward pass is known for the model.
        """
        assert known is not None
        survey, profile = tools.survey, machine.load()
        try:
            windows = known.choosing[:_CHOOSING]
            side_by_side = min(cores(), windows_at_once(survey, len(windows[0]), _MEMORY))
            found = sensitivities(survey, windows, tools.progress, side_by_side)
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
        self._problem = Problem(goal, ladders, rest(survey, ladders, profile, goal.context))
        self._problem.check()
        names = {choice.technique.name for choice in (*owners, *others)}
        kept = [c for c in self.choices if c.requested and c.technique.name not in names]
        base = Rules(strip=self.strip_dense, gating=_ANYTHING, gated=True)
        plan = make_plan(survey.sites, [*kept, *owners], self.on_conflict, None, base)
        chosen = self._problem.chosen(self._problem.solve(self._problem.allowed))
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
        dense = Model.load(tools.survey.bundle.path, threads=1)
        plans = (*self._problem.plans, *(slot.site_plan for slot in slots))
        length = acting_context(tools.survey, plans, JOINED, dense.limit)
        windows = judging_windows(known, length)
        decode, folder = self._decodes(slots), tools.work / "candidate"
        reference = Reference(dense, tools.work)
        scored = Candidates(reference, windows, decode, folder, candidates.write, tools.progress)
        offered = self._problem.techniques
        search = _Search(self._problem, offered, slots, scored.score, candidates.fill)
        pays: list[Paying] = []
        if self.goal.points:
            search.frontier()
        else:
            search.run()
            search, pays = self._paying(search, candidates, tools.work)
        return slots if search.best is None else search.best, WholeModelGate(
            max_dppl=self.goal.max_dppl,
            max_kl=self.goal.max_kl,
            text="calibration" if self.calibration_file is not None else "the model's own",
            windows=len(windows),
            window_tokens=len(windows[0]),
            decode=decode,
            trials=search.trials,
            built=search.built,
            paying=pays,
        )

    def _paying(
        self, search: _Search, candidates: CandidateTools, work: Path
    ) -> tuple[_Search, list[Paying]]:
        """The search without the techniques that make the model neither smaller nor faster."""
        assert self._problem is not None
        acting = {c.technique.name for c in self._offering()[1]} - set(self.goal.force)
        found = []
        for name in sorted(acting):
            problem = search.problem
            if name not in problem.applied(search.picks):
                reason = paying.prediction(problem, search.picks, name)
                found.append(Paying(technique=name, applied=False, reason=reason))
            elif self.goal.measured:
                other = replace(search, problem=problem.without(name))
                try:
                    other.run()
                except TamizError:
                    reason = "no choice without it is within the limits"
                    found.append(Paying(technique=name, applied=True, reason=reason))
                    continue
                pays, reason = self._compare(search, other, candidates, work)
                found.append(Paying(technique=name, applied=pays, reason=reason))
                search = search if pays else other
        return search, found

    def _compare(
        self, ours: _Search, theirs: _Search, candidates: CandidateTools, work: Path
    ) -> tuple[bool, str]:
        """Whether the best choice of a search is smaller or faster than that of another, and by
        how much."""
        places = {}
        for name, way in (("with", ours), ("without", theirs)):
            places[name] = work / name
            shutil.rmtree(places[name], ignore_errors=True)
            places[name].mkdir()
            candidates.write(way.best or [], places[name])
        ratio = paying.speed_ratio(places["with"], places["without"], self.goal.context)
        sizes = [way.problem.spent(way.picks).bytes for way in (ours, theirs)]
        reason = (
            f"measured {ratio:.2f} × as fast as the best choice without it, "
            f"{sizes[0] / 1e6:.1f} instead of {sizes[1] / 1e6:.1f} MB"
        )
        return ratio > 1 or sizes[0] < sizes[1], reason

    def refused(self, slots: Sequence[Slot]) -> dict[str, list[str]]:
        """Techniques that their own fit or their rewrite refused."""
        return refused(slots)

    def _decodes(self, slots: Sequence[Slot]) -> bool:
        """Whether a technique that a trial may apply acts on single-token steps only."""
        assert self._problem is not None
        names = self._problem.techniques
        return decodes(slots) or any(self.techniques[name].decode_only for name in names)

    def _offering(self) -> tuple[list[Choice], list[Choice]]:
        """The techniques whose rungs are chosen from: those that store weights, and others."""
        given = {choice.technique.name: choice for choice in self.choices}
        allowed = {*self.goal.allow, *self.goal.force}
        owners, others = [], []
        for name, technique in self.techniques.items():
            if technique.rungs is None:
                continue
            choice = replace(given.get(name) or Choice.of(technique, {}), requested=True)
            if any(claim.resource is Resource.WEIGHTS for claim in technique.claims):
                owners.append(choice)
            elif name in allowed:
                others.append(choice)
        return owners, others


@dataclass
class _Search:
    """Trials until one uses the limits of quality.

    Attributes:
        problem: The ladders and the limits.
        offered: Names of the techniques that are chosen from.
        slots: The slots of the first solution.
        score: Measures a candidate.
        fill: Fits what a candidate's slots lack.
        trials: The candidates so far, for the report.
        built: Index of the trial that is built.
        best: Its slots, none where every site stays as it is; None before a trial is built.
        picks: Its rungs.
    """

    problem: Problem
    offered: Collection[str]
    slots: list[Slot]
    score: Evaluate
    fill: Fill
    trials: list[Trial] = field(default_factory=list)
    built: int | None = None
    best: list[Slot] | None = None
    picks: list[int] = field(default_factory=list)
    _known: dict[tuple[str, str, str], Slot] = field(default_factory=dict)

    def run(self) -> None:
        """Finds the best trial within the limits.

        Raises:
            TamizError: There is none.
        """
        problem, target, seen = self.problem, self.problem.allowed, set()
        low, high, factor, self.built = 0.0, math.inf, 1.0, None
        for _ in range(_TRIALS):
            picks = problem.solve(target)
            if tuple(picks) in seen:
                break
            seen.add(tuple(picks))
            candidate, predicted = self._candidate(picks), problem.spent(picks)
            used = self._try(candidate, picks, factor)
            if used <= 1:
                low, self.built = predicted.loss, len(self.trials) - 1
                self.best, self.picks = candidate, picks
            else:
                high = predicted.loss
            if target is None or _ENOUGH <= used <= 1:
                break
            step = min(_STEP, max(1 / _STEP, _AIM / max(used, 1e-9)))
            lost = max(used, 0.0) * problem.allowed_loss
            factor = lost / predicted.loss if predicted.loss else 0.0
            target = predicted.loss * step or problem.allowed_loss
            if not low < target < high:
                target = math.sqrt(max(low, high / 16) * high)
        if self.built is None:
            least = min(trial.kl_mean or math.inf for trial in self.trials)
            raise TamizError(
                f"no trial is within the limits: the closest has a KL divergence of {least:.2g} "
                "nats per token; raise --max-dppl or --max-kl"
            )

    def frontier(self) -> None:
        """A trial for each point from the limit of KL on, some of them measured.

        The losses of the others are predicted, corrected by what was measured.
        """
        goal, problem = self.problem.goal, self.problem
        first = self.problem.allowed_loss
        steps = [(_MOST_LOSS / first) ** (n / max(1, goal.points - 1)) for n in range(goal.points)]
        points = list(dict.fromkeys(tuple(problem.solve(first * step)) for step in steps))
        step = (len(points) - 1) / max(1, goal.samples - 1)
        factors: list[float] = []
        measured: dict[tuple[int, ...], Trial] = {}
        for picks in dict.fromkeys(points[round(n * step)] for n in range(goal.samples)):
            self._try(self._candidate(picks), picks, 1.0)
            measured[picks] = self.trials[-1]
            predicted = problem.spent(picks).loss
            factors += [(self.trials[-1].kl_mean or 0.0) / predicted] if predicted else []
        factor = statistics.median(factors) if factors else 1.0
        self.trials = [
            measured.get(picks) or self._trial(picks, factor, holds=False) for picks in points
        ]

    def _trial(self, picks: Sequence[int], factor: float, **measured: Any) -> Trial:
        """A trial for the report: what was predicted for a choice, and what was measured."""
        spent = self.problem.spent(picks)
        return Trial(
            refused=[],
            predicted=rounded(math.expm1(min(factor * spent.loss, 700.0))),
            bytes=spent.bytes,
            predicted_tok_s=rounded(1 / spent.seconds) if spent.seconds else None,
            **measured,
        )

    def _try(self, candidate: list[Slot], picks: Sequence[int], factor: float) -> float:
        """The share of the limits of quality that a candidate uses, as measured."""
        quality, goal = self.score(candidate), self.problem.goal
        dppl, kl = quality["dppl"], max(quality["kl_mean"], quality.get("kl_decode", 0.0))
        shares = [0.0]
        if goal.max_kl is not None:
            shares.append(kl / goal.max_kl)
        if goal.max_dppl is not None:
            shares.append(math.log1p(dppl) / math.log1p(goal.max_dppl))
        used = max(shares) if all(map(math.isfinite, shares)) else math.inf
        measured = {name: rounded(value) for name, value in quality.items()}
        self.trials.append(self._trial(picks, factor, holds=used <= 1, **measured))
        return used

    def _candidate(self, picks: Sequence[int]) -> list[Slot]:
        """The slots of a choice, fitted."""
        chosen = self.problem.chosen(picks)
        slots: list[Slot] = []
        others: dict[str, list[Slot]] = {}
        for found in self.slots:
            at, technique = found.site_plan.site.id, _choice(found).technique.name
            if at not in chosen or technique not in self.offered:
                others.setdefault(at, []).append(found)
        for site, plan in chosen.items():
            slots += [self._known.get(_key(slot), slot) for slot in slots_of(plan)]
            slots += others.pop(site, [])
        slots += [slot for rest in others.values() for slot in rest]
        filled = self.fill(slots)
        self._known |= {_key(slot): slot for slot in filled}
        return filled


def _choice(slot: Slot) -> Choice:
    """What a slot applies or is going to fit."""
    return slot.fitted[0].choice if slot.fitted else slot.waiting[0][0]


def _key(slot: Slot) -> tuple[str, str, str]:
    """Site, technique and configuration of a slot."""
    choice = _choice(slot)
    config = json.dumps(choice.config.model_dump(mode="json"), sort_keys=True)
    return slot.site_plan.site.id, choice.technique.name, config


def _with_chosen(at: SitePlan, chosen: Mapping[str, SitePlan], names: Collection[str]) -> SitePlan:
    """A site's plan with the techniques of the solution."""
    kept = tuple(choice for choice in at.choices if choice.technique.name not in names)
    found = chosen[at.site.id].choices if at.site.id in chosen else ()
    return replace(at, choices=(*found, *kept), fallbacks=())
