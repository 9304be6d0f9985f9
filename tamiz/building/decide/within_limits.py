"""Spends the limits of a build where they pay: one solver for all sites.

    predict: the options of every weight      solve: one option for each      measure: the model

Each trial builds the solution and measures it on windows that the prediction has not read; see
`tamiz.building.search.limit_search`.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tamiz.api.technique import Resource, Technique
from tamiz.building.decide.by_policy import ByPolicy
from tamiz.building.decide.decider import CandidateTools, Course, Tools
from tamiz.building.decision import Decision, applied, refused
from tamiz.building.options import Options
from tamiz.building.search.frontier import frontier
from tamiz.building.search.limit_search import Fits, LimitSearch
from tamiz.building.search.problem import Problem, rest
from tamiz.building.search.weight_options import OptionMaker
from tamiz.building.search.what_pays import Comparer, keep_what_pays
from tamiz.calibration.calibration import Calibration
from tamiz.evaluation.judges.judge import JOINED, HeldOut, Judge, evenly
from tamiz.evaluation.windows import Window
from tamiz.files.errors import TamizError
from tamiz.planning.choice import Choice, step_rows
from tamiz.planning.costs import acting_context
from tamiz.planning.goal import Goal
from tamiz.planning.plan import Plan, make_plan
from tamiz.planning.policy import Gating, Rules
from tamiz.planning.resolver import SitePlan
from tamiz.reporting.gate import TrialReport, WholeModelGate
from tamiz.survey.backward import UnknownOpError
from tamiz.survey.sensitivity import WeightSensitivity, kept_of_text, sensitivities, windows_at_once
from tamiz.survey.survey import Survey
from tamiz.system import machine
from tamiz.system.cores import cores

#: Fitting windows of a calibration that predictions of losses read; of more domains half a window
#: each.
_FITTING = 4
#: Bytes that the activations of parts which are run side by side may take, and what is kept of the
#: texts of an encoder.
_MEMORY, _KEPT = 3 << 30, 1 << 30
#: The whole model is measured, so the gate of a single tensor accepts any fit.
_ANYTHING = Gating("cos_w", None, None, None)


@dataclass(frozen=True)
class WithinLimits:
    """A decider that solves for the limits of a build; see `tamiz.building.decide.decider.Decider`.

    Attributes:
        techniques: The declared techniques by name.
        choices: Techniques that the user requested.
        options: The build's options.
        goal: The limits.
    """

    techniques: Mapping[str, Technique]
    choices: Sequence[Choice]
    options: Options
    goal: Goal

    def start(self, tools: Tools) -> Course:
        """The options of all weights, and the plan of the first solution.

        Of other models than decoders and encoders no loss is predicted, so flags choose formats.

        Raises:
            TamizError: A limit does not apply to the model or cannot be reached, nothing can be
                chosen, no technique can act, or no backward pass is known for the model. Or a speed
                is requested, and this machine was not measured.
        """
        model = tools.survey.bundle.path
        if not tools.judge.predicts:
            requested = {choice.technique.name for choice in self.choices if choice.requested}
            others = tuple(name for name in self.goal.allow if name not in requested)
            goal = tools.judge.applicable(replace(self.goal, allow=others), model)
            options = replace(self.options, min_cosine=goal.min_cosine)
            return ByPolicy(self.techniques, self.choices, options).start(tools)
        goal = tools.judge.applicable(self.goal, model)
        offer = Offer.of(self.techniques, self.choices, goal, self.options.off)
        if goal.min_tok_s is not None and machine.load() is None:
            raise TamizError(
                "--min-tok-s: this machine was not measured, run 'tamiz doctor --profile' first"
            )
        calibration = tools.calibration(needed=True)
        assert calibration is not None
        problem = _problem(tools, calibration, goal, offer)
        problem.check()
        plan = self._plan(tools.survey, problem, offer)
        return LimitCourse(tools, problem, offer, plan, calibration, self.options.keep)

    def _plan(self, survey: Survey, problem: Problem, offer: Offer) -> Plan:
        """The plan of the first solution, with the requested techniques that are not chosen."""
        kept = [c for c in self.choices if c.requested and c.technique.name not in offer.names]
        base = Rules(strip=self.options.strip_dense, gating=_ANYTHING, gated=True)
        on_conflict = self.options.on_conflict
        plan = make_plan(survey.sites, [*kept, *offer.storing], on_conflict, None, base)
        chosen = problem.chosen(problem.solve(problem.first))
        sites = tuple(_with_chosen(at, chosen, offer.names) for at in plan.sites)
        return replace(plan, sites=sites, choices=(*plan.choices, *offer.others))


@dataclass(frozen=True)
class Offer:
    """The techniques whose options are chosen from.

    Attributes:
        storing: Those that store weights.
        others: Those that act on weights or attentions.
    """

    storing: Sequence[Choice]
    others: Sequence[Choice]

    @property
    def names(self) -> set[str]:
        """The names of all."""
        return {choice.technique.name for choice in (*self.storing, *self.others)}

    @classmethod
    def of(
        cls,
        techniques: Mapping[str, Technique],
        choices: Sequence[Choice],
        goal: Goal,
        off: Collection[str],
    ) -> Offer:
        """What a goal allows of the techniques that are not switched off.

        Raises:
            TamizError: A technique is switched off and named, or no technique is left.
        """
        if named := sorted({*off} & {*goal.allow, *goal.force}):
            raise TamizError(
                f"--{named[0]}=off: found the technique in --allow or --force as well; remove one "
                "of the two"
            )
        given = {choice.technique.name: choice for choice in choices}
        storing, others = [], []
        for name, technique in techniques.items():
            if technique.options is None or name in off:
                continue
            choice = replace(given.get(name) or Choice.of(technique, {}), requested=True)
            if any(claim.resource is Resource.WEIGHTS for claim in technique.claims):
                storing.append(choice)
            elif name in {*goal.allow, *goal.force}:
                others.append(choice)
        if not storing and not others:
            names = [n for n, t in techniques.items() if n in off and t.options is not None]
            because = " with " + " and ".join(f"--{name}=off" for name in names) if names else ""
            raise TamizError(
                f"a build within limits has nothing to choose from{because}; name techniques with "
                "--allow"
            )
        return cls(storing, others)


@dataclass(frozen=True)
class LimitCourse:
    """The first solution of a problem, and the trials that follow.

    Attributes:
        tools: What the decider works with.
        problem: The options and the limits.
        offer: The techniques that are chosen from.
        plan: The plan of the first solution.
        calibration: What fits and gates read.
        keep: Folder that gets the bundles of a frontier's measured points; None: they are removed.
    """

    tools: Tools
    problem: Problem
    offer: Offer
    plan: Plan
    calibration: Calibration
    keep: Path | None

    def gate(
        self, decisions: list[Decision], candidates: CandidateTools
    ) -> tuple[list[Decision], WholeModelGate]:
        """Measures the first solution, corrects the prediction and solves again.

        Raises:
            TamizError: No trial meets the limits, or the calibration keeps no held-out windows.
        """
        judge, goal = self._judge(decisions), self.problem.goal
        measured = candidates.judged_by(judge)
        fits = Fits(decisions, self.problem.techniques, measured)
        if goal.points:
            points = frontier(self.problem, fits, lambda trial: self._keep(trial, candidates))
            return decisions, WholeModelGate.of(judge, points, None)
        search = LimitSearch(self.problem, fits)
        solution = search.find()
        acting = {choice.technique.name for choice in self.offer.others} - {*goal.force}
        comparer = Comparer(candidates.write, self.tools.work, goal.context, goal.prefer == "size")
        solution, pays = keep_what_pays(search, solution, acting, comparer)
        gate = WholeModelGate.of(judge, measured.trials, solution.trial, pays)
        return solution.decisions, gate

    def refused(self, decisions: Sequence[Decision]) -> dict[str, list[str]]:
        """Techniques that their own fit or their rewrite refused."""
        return refused(decisions)

    def _judge(self, decisions: Sequence[Decision]) -> Judge:
        """The judge, who reads windows as long as any option needs."""
        survey, offered = self.tools.survey, self.problem.plans
        plans = (*offered, *(decision.site_plan for decision in decisions))
        choices = [choice for plan in offered for choice in plan.choices]

        def context(most: int) -> int:
            return acting_context(survey, plans, JOINED, most)

        rows = step_rows([*applied(decisions), *choices])
        tools, windows = self.tools, self.calibration.check_held_out
        held_out = HeldOut(windows, tools.text_read, context, rows)
        return tools.judge(survey.bundle, self.problem.goal, held_out, tools.work)

    def _keep(self, trial: TrialReport, candidates: CandidateTools) -> None:
        """Moves a candidate to the folder that keeps them, named by its number and its MB."""
        if self.keep is not None and trial.bytes is not None:
            self.keep.mkdir(parents=True, exist_ok=True)
            number = sum(1 for _ in self.keep.iterdir()) + 1
            shutil.move(candidates.folder, self.keep / f"{number:02}-{trial.bytes / 1e6:.1f}MB")


def _problem(tools: Tools, calibration: Calibration, goal: Goal, offer: Offer) -> Problem:
    """The options of all weights, with what each is predicted to lose.

    Raises:
        TamizError: No technique can act, or no backward pass is known for the model.
    """
    survey = tools.survey
    profile = machine.load() if tools.judge.decodes else None
    weights = OptionMaker(
        survey=survey,
        storing=offer.storing,
        bits="bits" in goal.allow,
        others=offer.others,
        forced=frozenset(goal.force),
        sensitivities=_sensitivities(tools, calibration),
        calibration=calibration,
        profile=profile,
        context=goal.context,
        progress=tools.progress,
    ).options()
    if not weights:
        raise TamizError(
            f"{survey.bundle.path}: no technique that a build within limits may choose can act "
            "there; name others with --allow"
        )
    fixed = rest(survey, weights, profile, goal.context)
    return Problem(goal, weights, fixed, tools.judge.limit(goal), profile is not None)


def _sensitivities(tools: Tools, calibration: Calibration) -> Mapping[str, WeightSensitivity]:
    """What errors of weights cost, on fitting windows.

    Raises:
        TamizError: No backward pass is known for the model.
    """
    survey = tools.survey

    def most(tokens: int) -> int:
        return _KEPT // max(1, kept_of_text(survey, tokens))

    windows = predicted_on(calibration.fitting)
    parts = tools.judge.fitting_parts(windows, survey.bundle, most)
    try:
        side_by_side = min(cores(), windows_at_once(survey, len(parts[0]), _MEMORY))
        return sensitivities(survey, parts, tools.progress, side_by_side)
    except UnknownOpError as error:
        raise TamizError(
            f"{survey.bundle.path}: losses cannot be predicted, as no backward pass is known "
            f"through {error}; build with --policy or --recipe instead of limits"
        ) from error


def predicted_on(windows: Sequence[Window]) -> list[list[int]]:
    """The windows that predictions of losses read: some of each domain."""
    names = dict.fromkeys(window.origin for window in windows)
    groups = [[list(w.tokens) for w in windows if w.origin == name] for name in names]
    if len(groups) < _FITTING:
        most = -(-_FITTING // max(1, len(groups)))
        return [tokens for group in groups for tokens in evenly(group, most)][:_FITTING]
    return [group[0][: len(group[0]) // 2] for group in groups]


def _with_chosen(at: SitePlan, chosen: Mapping[str, SitePlan], names: Collection[str]) -> SitePlan:
    """A site's plan with the techniques of the solution."""
    kept = tuple(choice for choice in at.choices if choice.technique.name not in names)
    offered = chosen[at.site.id].choices if at.site.id in chosen else ()
    return replace(at, choices=(*offered, *kept), fallbacks=())
