"""What a build within limits solves: one option to choose for each weight and each attention.

`tamiz.building.search.weight_options` makes the options, `tamiz.building.search.solver` solves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tamiz.api.site import Site
from tamiz.building.search.solver import Option, TotalLimits, solve, total
from tamiz.building.write.rewriting import constant_bytes
from tamiz.files.errors import TamizError
from tamiz.planning import speed
from tamiz.planning.costs import predict, totals
from tamiz.planning.goal import Goal
from tamiz.planning.plan import make_plan
from tamiz.planning.resolver import SitePlan
from tamiz.survey.survey import Survey
from tamiz.system.machine import Profile

#: Measured bound of a first trial by its predicted loss: 1.5 to 2.7 on models of 135 million to 0.5
#: billion weights.
FIRST_FACTOR = 2.7


@dataclass(frozen=True)
class WeightOptions:
    """The options of one weight, or of one attention.

    Attributes:
        sites: The sites that share the weight.
        options: The options.
        plans: The plans of the sites in each option.
    """

    sites: tuple[Site, ...]
    options: tuple[Option, ...]
    plans: tuple[tuple[SitePlan, ...], ...]

    def without(self, technique: str) -> WeightOptions:
        """The options without those in which a technique acts."""
        return self.only(lambda names: technique not in names)

    def only(self, keeps: Callable[[set[str]], bool]) -> WeightOptions:
        """The options whose techniques' names `keeps` accepts."""
        kept = [i for i, plans in enumerate(self.plans) if keeps(names(plans))]
        options, plans = tuple(self.options[i] for i in kept), tuple(self.plans[i] for i in kept)
        return WeightOptions(self.sites, options, plans)


def names(plans: Sequence[SitePlan]) -> set[str]:
    """The names of all techniques of plans."""
    return {choice.technique.name for plan in plans for choice in plan.choices}


@dataclass(frozen=True)
class Problem:
    """What a build within limits solves.

    Attributes:
        goal: The limits.
        weights: The options of every weight.
        fixed: What the model costs beside these weights.
        bound: Largest loss that the goal accepts, in the judge's unit; None for no limit.
        timed: Whether seconds are those of a measured machine, and not of a nominal one.
    """

    goal: Goal
    weights: Sequence[WeightOptions]
    fixed: Option
    bound: float | None = None
    timed: bool = True

    @property
    def first(self) -> float | None:
        """The predicted loss that a first trial aims at; None without a limit of quality."""
        return None if self.bound is None else self.bound / FIRST_FACTOR

    def spent(self, picks: Sequence[int]) -> Option:
        """What the whole model costs."""
        sums, fixed = total(self._options, picks), self.fixed
        return Option("model", sums.loss, sums.bytes + fixed.bytes, sums.seconds + fixed.seconds)

    def chosen(self, picks: Sequence[int]) -> dict[str, SitePlan]:
        """The plan of every site with options, by id."""
        return {
            plan.site.id: plan
            for weight, pick in zip(self.weights, picks, strict=True)
            for plan in weight.plans[pick]
        }

    def applied(self, picks: Sequence[int]) -> set[str]:
        """Names of the techniques of a choice."""
        pairs = zip(self.weights, picks, strict=True)
        return {name for weight, pick in pairs for name in names(weight.plans[pick])}

    @property
    def plans(self) -> list[SitePlan]:
        """The plans of all options."""
        return [plan for weight in self.weights for plans in weight.plans for plan in plans]

    @property
    def techniques(self) -> set[str]:
        """Names of all techniques of the options."""
        return names(self.plans)

    def without(self, technique: str) -> Problem:
        """The problem without the options in which a technique acts."""
        return replace(self, weights=[weight.without(technique) for weight in self.weights])

    def solve(self, loss: float | None) -> list[int]:
        """The option of every weight, for a largest predicted loss."""
        return solve(self._options, replace(self._limits, loss=loss), self.goal.prefer)[0]

    def check(self) -> None:
        """Refuses limits of bytes and speed that no choice meets.

        Raises:
            TamizError: There is none; says what the smallest and the fastest choices have.
        """
        if solve(self._options, self._limits, self.goal.prefer)[1]:
            return
        ends = [
            self.spent(solve(self._options, TotalLimits(), way)[0]) for way in ("size", "speed")
        ]
        raise TamizError(
            f"no choice meets the limits: the smallest model has {ends[0].bytes / 1e6:.1f} MB, the "
            f"fastest {1 / max(ends[1].seconds, 1e-9):.1f} predicted tokens per second; change "
            "--max-mb or --min-tok-s"
        )

    @property
    def _options(self) -> list[tuple[Option, ...]]:
        return [weight.options for weight in self.weights]

    @property
    def _limits(self) -> TotalLimits:
        goal, fixed = self.goal, self.fixed
        return TotalLimits(
            bytes=None if goal.max_bytes is None else goal.max_bytes - fixed.bytes,
            seconds=None if goal.min_tok_s is None else 1 / goal.min_tok_s - fixed.seconds,
        )


def rest(
    survey: Survey, weights: Sequence[WeightOptions], profile: Profile | None, context: int
) -> Option:
    """What a model costs beside the weights that have options."""
    firsts = [weight.sites[0] for weight in weights]
    stored = sum(survey.weight_bytes(site) for site in firsts if site.weight is not None)
    seconds = 0.0
    if profile is not None:
        predictions = predict(survey, make_plan(survey.sites, []), context)
        predicted = speed.predict(survey, predictions, totals(survey, predictions), profile)[-1]
        ours = sum(predicted.sites[site.id] for weight in weights for site in weight.sites)
        seconds = max(0.0, 1 / predicted.before - ours)
    return Option("rest", 0.0, constant_bytes(survey.model) - stored, seconds)
