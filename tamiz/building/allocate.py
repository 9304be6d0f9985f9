"""A decider that spends the limits of a build where they pay: one solver for all sites.

    predict: the rungs of every weight      solve: one rung for each      measure: the whole model

The loss of a choice is predicted as f · Σ loss(rung), with f = 1 at first. Each trial builds the
choice and measures it on windows that the prediction has not read; f becomes measured / predicted.
The search ends when a trial uses 90 % of the limit and does not exceed it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tamiz.api.technique import Technique
from tamiz.building.candidates import Candidates, choosing, decodes, judging_windows
from tamiz.building.decider import CandidateTools, Tools
from tamiz.building.ladders import LadderMaker, Problem, rest
from tamiz.building.selection import Slot, refused
from tamiz.building.whole_model import Evaluate, Fill, rounded
from tamiz.calibration import file as calibrations
from tamiz.calibration.calibrate import calibrate_on_own_text
from tamiz.calibration.file import Calibration
from tamiz.files.errors import TamizError
from tamiz.planning import machine
from tamiz.planning.allocation import Goal
from tamiz.planning.plan import Plan, make_plan
from tamiz.planning.policy import Gating, Rules
from tamiz.planning.resolver import Choice, SitePlan
from tamiz.reporting.report import Trial, WholeModelGate
from tamiz.survey.backward import UnknownOpError
from tamiz.survey.sensitivity import sensitivities

#: Largest number of trials, the share of a limit that a trial aims at, the share that ends the
#: search, and the largest factor between the losses of two trials.
_TRIALS, _AIM, _ENOUGH, _STEP = 6, 0.96, 0.9, 4.0
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
        """The calibration that was given, or one of the model's own text."""
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
        if self.goal.min_tok_s is not None and profile is None:
            raise TamizError(
                "--min-tok-s: this machine was not measured, run 'tamiz doctor --profile' first"
            )
        try:
            found = sensitivities(survey, known.tokens[: choosing(known)], tools.progress)
        except UnknownOpError as error:
            raise TamizError(
                f"{survey.bundle.path}: losses cannot be predicted, as no backward pass is known "
                f"through {error}; build with --policy or --recipe instead of limits"
            ) from error
        owners = self._owners()
        ladders = LadderMaker(survey, owners, found, profile, tools.progress).ladders()
        self._problem = Problem(self.goal, ladders, rest(survey, ladders, profile))
        self._problem.check()
        names = {owner.technique.name for owner in owners}
        others = (c for c in self.choices if c.requested and c.technique.name not in names)
        base = Rules(strip=self.strip_dense, gating=_ANYTHING, gated=True)
        plan = make_plan(survey.sites, [*others, *owners], self.on_conflict, None, base)
        chosen = self._problem.chosen(self._problem.solve(self._problem.allowed))
        return replace(plan, sites=tuple(_with_owner(at, chosen, names) for at in plan.sites))

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
        from tamiz.evaluation.evaluate import Reference
        from tamiz.runtime.model import Model

        assert known is not None
        assert self._problem is not None
        dense = Model.load(tools.survey.bundle.path, threads=1)
        windows = judging_windows(known, dense.limit)
        decode, folder = decodes(slots), tools.work / "candidate"
        reference = Reference(dense, tools.work)
        scored = Candidates(reference, windows, decode, folder, candidates.write, tools.progress)
        search = _Search(self._problem, slots, scored.score, candidates.fill)
        best = search.run()
        return best, WholeModelGate(
            max_dppl=self.goal.max_dppl,
            max_kl=self.goal.max_kl,
            text="calibration" if self.calibration_file is not None else "the model's own",
            windows=len(windows),
            window_tokens=len(windows[0]),
            decode=decode,
            trials=search.trials,
            built=search.built,
        )

    def refused(self, slots: Sequence[Slot]) -> dict[str, list[str]]:
        """Techniques that their own fit or their rewrite refused."""
        return refused(slots)

    def _owners(self) -> list[Choice]:
        """The techniques whose rungs are chosen from."""
        offering = [t for t in self.techniques.values() if t.rungs is not None]
        allowed = [t for t in offering if {"bits", t.name} & set(self.goal.allow)]
        given = {choice.technique.name: choice for choice in self.choices}
        return [replace(given.get(t.name) or Choice.of(t, {}), requested=True) for t in allowed]


@dataclass
class _Search:
    """Trials until one uses the limits of quality.

    Attributes:
        problem: The ladders and the limits.
        slots: The slots of the first solution.
        score: Measures a candidate.
        fill: Fits what a candidate's slots lack.
        trials: The candidates so far, for the report.
        built: Index of the trial that is built.
    """

    problem: Problem
    slots: list[Slot]
    score: Evaluate
    fill: Fill
    trials: list[Trial] = field(default_factory=list)
    built: int | None = None
    _known: dict[tuple[str, str], Slot] = field(default_factory=dict)

    def run(self) -> list[Slot]:
        """The slots of the best trial within the limits.

        Raises:
            TamizError: There is none.
        """
        problem, target, seen = self.problem, self.problem.allowed, set()
        low, high, factor, best = 0.0, math.inf, 1.0, None
        for _ in range(_TRIALS):
            picks = problem.solve(target)
            if tuple(picks) in seen:
                break
            seen.add(tuple(picks))
            candidate, predicted = self._candidate(picks), problem.spent(picks)
            used = self._try(candidate, picks, factor)
            if used <= 1:
                low, best, self.built = predicted.loss, candidate, len(self.trials) - 1
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
        if best is None:
            least = min(trial.kl_mean or math.inf for trial in self.trials)
            raise TamizError(
                f"no trial is within the limits: the closest has a KL divergence of {least:.2g} "
                "nats per token; raise --max-dppl or --max-kl"
            )
        return best

    def _try(self, candidate: list[Slot], picks: Sequence[int], factor: float) -> float:
        """The share of the limits of quality that a candidate uses, as measured."""
        quality, spent, goal = self.score(candidate), self.problem.spent(picks), self.problem.goal
        dppl, kl = quality["dppl"], quality["kl_mean"]
        shares = [0.0]
        if goal.max_kl is not None:
            shares.append(kl / goal.max_kl)
        if goal.max_dppl is not None:
            shares.append(math.log1p(dppl) / math.log1p(goal.max_dppl))
        used = max(shares) if all(map(math.isfinite, shares)) else math.inf
        measured: dict[str, Any] = {name: rounded(value) for name, value in quality.items()}
        self.trials.append(
            Trial(
                refused=[],
                predicted=rounded(math.expm1(min(factor * spent.loss, 700.0))),
                bytes=spent.bytes,
                predicted_tok_s=rounded(1 / spent.seconds) if spent.seconds else None,
                holds=used <= 1,
                **measured,
            )
        )
        return used

    def _candidate(self, picks: Sequence[int]) -> list[Slot]:
        """The slots of a choice, fitted."""
        chosen, slots = self.problem.chosen(picks), []
        owned = {site.id for ladder in self.problem.ladders for site in ladder.sites}
        others: dict[str, list[Slot]] = {}
        for slot in self.slots:
            technique = (slot.accepted or slot.fitted[0].attempt).choice.technique
            if slot.site_plan.site.id not in owned or technique.rungs is None:
                others.setdefault(slot.site_plan.site.id, []).append(slot)
        for site in self.problem.sites:
            if (choice := chosen.get(site.id)) is not None:
                rung = json.dumps(choice.config.model_dump(mode="json"), sort_keys=True)
                made = Slot(SitePlan(site, (choice,), None), ((choice, 0),))
                slots.append(self._known.get((site.id, rung), made))
            slots += others.pop(site.id, [])
        slots += [slot for rest in others.values() for slot in rest]
        filled = self.fill(slots)
        for slot in filled:
            found = slot.fitted[0].choice
            rung = json.dumps(found.config.model_dump(mode="json"), sort_keys=True)
            if found.technique.rungs is not None:
                self._known[slot.site_plan.site.id, rung] = slot
        return filled


def _with_owner(at: SitePlan, chosen: Mapping[str, Choice], names: set[str]) -> SitePlan:
    """A site's plan with the choice of the solution as the owner of its weight."""
    others = tuple(choice for choice in at.choices if choice.technique.name not in names)
    owner = (chosen[at.site.id],) if at.site.id in chosen else ()
    return replace(at, choices=(*owner, *others), fallbacks=())
