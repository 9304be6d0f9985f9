"""What a build within limits solves: ladders of rungs, one rung to choose for each weight.

`tamiz.building.search.weight_options` makes the ladders, `tamiz.building.search.solver` solves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tamiz.api.site import Site
from tamiz.building.search.solver import Goal, Limits, Rung, solve, total
from tamiz.building.write.rewriting import constant_bytes
from tamiz.files.errors import TamizError
from tamiz.planning import speed
from tamiz.planning.plan import make_plan, predict, totals
from tamiz.planning.resolver import SitePlan
from tamiz.survey.survey import Survey
from tamiz.system.machine import Profile

#: Measured loss of a first trial by its predicted loss: 1.2 to 1.8 on models of 135 million to 1.5
#: billion weights.
FIRST_FACTOR = 1.4


@dataclass(frozen=True)
class Ladder:
    """The rungs of one weight, or of one attention.

    Attributes:
        sites: The sites that share the weight.
        rungs: The rungs.
        plans: The plans of the sites on each rung.
    """

    sites: tuple[Site, ...]
    rungs: tuple[Rung, ...]
    plans: tuple[tuple[SitePlan, ...], ...]

    def without(self, technique: str) -> Ladder:
        """The ladder without the rungs on which a technique acts."""
        return self.only(lambda names: technique not in names)

    def only(self, keeps: Callable[[set[str]], bool]) -> Ladder:
        """The ladder with the rungs whose techniques' names `keeps` accepts."""
        kept = [i for i, plans in enumerate(self.plans) if keeps(names(plans))]
        rungs, plans = tuple(self.rungs[i] for i in kept), tuple(self.plans[i] for i in kept)
        return Ladder(self.sites, rungs, plans)


def names(plans: Sequence[SitePlan]) -> set[str]:
    """The names of all techniques of plans."""
    return {choice.technique.name for plan in plans for choice in plan.choices}


@dataclass(frozen=True)
class Problem:
    """What a build within limits solves.

    Attributes:
        goal: The limits.
        ladders: The rungs of every weight.
        fixed: What the model costs beside these weights.
        of_texts: Whether losses are those of an encoder, 1 - cosine, and not nats per token.
        timed: Whether seconds are those of a measured machine, and not of a nominal one.
    """

    goal: Goal
    ladders: Sequence[Ladder]
    fixed: Rung
    of_texts: bool = False
    timed: bool = True

    @property
    def allowed_loss(self) -> float:
        """The limit of quality as a KL divergence, in nats per token, of an encoder as 1 - cosine;
        infinite without one."""
        goal, dppl = self.goal, self.goal.max_dppl
        bounds = [
            goal.max_kl,
            None if dppl is None else math.log1p(dppl),
            None if goal.min_cosine is None else 1 - goal.min_cosine,
        ]
        return min((bound for bound in bounds if bound is not None), default=math.inf)

    @property
    def allowed(self) -> float | None:
        """`allowed_loss`; None without a limit of quality."""
        return self.allowed_loss if self.goal.lossy else None

    @property
    def first(self) -> float | None:
        """The predicted loss that a first trial aims at; None without a limit of quality."""
        return self.allowed_loss / FIRST_FACTOR if self.goal.lossy else None

    def spent(self, picks: Sequence[int]) -> Rung:
        """What the whole model costs."""
        sums, fixed = total(self._rungs, picks), self.fixed
        return Rung("model", sums.loss, sums.bytes + fixed.bytes, sums.seconds + fixed.seconds)

    def chosen(self, picks: Sequence[int]) -> dict[str, SitePlan]:
        """The plan of every site of a ladder, by id."""
        return {
            plan.site.id: plan
            for ladder, pick in zip(self.ladders, picks, strict=True)
            for plan in ladder.plans[pick]
        }

    def applied(self, picks: Sequence[int]) -> set[str]:
        """Names of the techniques of a choice."""
        pairs = zip(self.ladders, picks, strict=True)
        return {name for ladder, pick in pairs for name in names(ladder.plans[pick])}

    @property
    def plans(self) -> list[SitePlan]:
        """The plans of all rungs."""
        return [plan for ladder in self.ladders for plans in ladder.plans for plan in plans]

    @property
    def techniques(self) -> set[str]:
        """Names of all techniques of the rungs."""
        return names(self.plans)

    def without(self, technique: str) -> Problem:
        """The problem without the rungs on which a technique acts."""
        return replace(self, ladders=[ladder.without(technique) for ladder in self.ladders])

    def solve(self, loss: float | None) -> list[int]:
        """The rung of every ladder, for a largest predicted loss."""
        return solve(self._rungs, replace(self._limits, loss=loss), self.goal.prefer)[0]

    def check(self) -> None:
        """Refuses limits of bytes and speed that no choice meets.

        Raises:
            TamizError: There is none; says what the smallest and the fastest choices have.
        """
        if solve(self._rungs, self._limits, self.goal.prefer)[1]:
            return
        ends = [self.spent(solve(self._rungs, Limits(), way)[0]) for way in ("size", "speed")]
        raise TamizError(
            f"no choice meets the limits: the smallest model has {ends[0].bytes / 1e6:.1f} MB, the "
            f"fastest {1 / max(ends[1].seconds, 1e-9):.1f} predicted tokens per second; change "
            "--max-mb or --min-tok-s"
        )

    @property
    def _rungs(self) -> list[tuple[Rung, ...]]:
        return [ladder.rungs for ladder in self.ladders]

    @property
    def _limits(self) -> Limits:
        goal, fixed = self.goal, self.fixed
        return Limits(
            bytes=None if goal.max_bytes is None else goal.max_bytes - fixed.bytes,
            seconds=None if goal.min_tok_s is None else 1 / goal.min_tok_s - fixed.seconds,
        )


def rest(survey: Survey, ladders: Sequence[Ladder], profile: Profile | None, context: int) -> Rung:
    """What a model costs beside the sites of ladders."""
    firsts = [ladder.sites[0] for ladder in ladders]
    weights = sum(survey.weight_bytes(site) for site in firsts if site.weight is not None)
    seconds = 0.0
    if profile is not None:
        predictions = predict(survey, make_plan(survey.sites, []), context)
        found = speed.predict(survey, predictions, totals(survey, predictions), profile)[-1]
        ours = sum(found.sites[site.id] for ladder in ladders for site in ladder.sites)
        seconds = max(0.0, 1 / found.before - ours)
    return Rung("rest", 0.0, constant_bytes(survey.model) - weights, seconds)


def applicable(goal: Goal, survey: Survey) -> Goal:
    """The limits that mean something for a model.

    Of a budget of perplexity and one of cosines that are both given, the one that applies.

    Raises:
        TamizError: Another limit does not apply; names it.
    """
    path = survey.bundle.path
    if goal.max_dppl is not None and goal.min_cosine is not None:
        decoder = survey.gives_logits
        goal = replace(goal, min_cosine=None) if decoder else replace(goal, max_dppl=None)
    if survey.gives_logits:
        if goal.min_cosine is not None:
            raise TamizError(
                f"{path}: --min-cosine bounds the embeddings of an encoder, found a decoder; use "
                "--max-dppl or --max-kl"
            )
        return goal
    if goal.points:
        raise TamizError(
            f"{path}: a frontier needs the logits of a decoder, found none; each 'tamiz build "
            "--min-cosine' or --max-mb shows one point"
        )
    others = {"max-dppl": goal.max_dppl, "max-kl": goal.max_kl, "min-tok-s": goal.min_tok_s}
    for flag, given in others.items():
        if given is not None:
            raise TamizError(
                f"{path}: --{flag} needs the logits of a decoder, found none; use --min-cosine or "
                "--max-mb"
            )
    if acting := {*goal.allow, *goal.force} - {"bits"}:
        raise TamizError(
            f"{path}: of an encoder a build within limits chooses weight formats only, found "
            f"{', '.join(sorted(acting))} in --allow or --force; expected bits"
        )
    # No speed is predicted for many rows: in all formats they take about the same time.
    return replace(goal, prefer="size") if goal.prefer == "speed" else goal
