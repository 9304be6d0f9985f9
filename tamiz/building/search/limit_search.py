"""The search within limits: predict, build, measure, correct.

The loss of a choice is predicted as f · Σ loss(option), with f = FIRST_FACTOR at first; after each
trial f is measured / predicted. The number that is searched is Σ loss(option).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tamiz.building.decision import Decision, decisions_of
from tamiz.building.search.candidates import Candidates, rounded
from tamiz.building.search.problem import FIRST_FACTOR, Problem
from tamiz.building.search.solver import Option
from tamiz.building.search.trial_search import TrialSearch, Tried
from tamiz.files.errors import TamizError
from tamiz.planning.choice import Choice

#: Share of time and of bytes that a further trial could save and that is not worth one: losses of
#: models that are so alike differ by chance.
_ALIKE = 0.01


class Fits:
    """Makes the decisions of solutions; what was fitted for one serves the others."""

    def __init__(
        self, decisions: Sequence[Decision], offered: Collection[str], candidates: Candidates
    ) -> None:
        """Begins with what was fitted.

        Args:
            decisions: Those of the first solution.
            offered: Names of the techniques that are chosen from.
            candidates: Fits and measures.
        """
        self.candidates = candidates
        self._decisions, self._offered = decisions, offered
        self._fitted: dict[tuple[str, str, str], Decision] = {}

    def of(self, problem: Problem, picks: Sequence[int]) -> list[Decision]:
        """The decisions of a solution, fitted."""
        chosen = problem.chosen(picks)
        decisions: list[Decision] = []
        others: dict[str, list[Decision]] = {}
        for decision in self._decisions:
            at, technique = decision.site_plan.site.id, _choice(decision).technique.name
            if at not in chosen or technique not in self._offered:
                others.setdefault(at, []).append(decision)
        for site, plan in chosen.items():
            decisions += [self._fitted.get(_key(new), new) for new in decisions_of(plan)]
            decisions += others.pop(site, [])
        decisions += [decision for rest in others.values() for decision in rest]
        filled = self.candidates.fill(decisions)
        self._fitted |= {_key(decision): decision for decision in filled}
        return filled

    def try_out(self, problem: Problem, picks: Sequence[int], factor: float) -> Tried[Solution]:
        """Builds and measures a solution whose predicted loss is corrected by a factor."""
        decisions, spent = self.of(problem, picks), problem.spent(picks)
        quality = self.candidates.measure(
            decisions, predicted=factor * spent.loss, **predictions(problem, spent)
        )
        solution = Solution(list(picks), spent, decisions, len(self.candidates.trials) - 1)
        return Tried(spent.loss, quality, solution)


@dataclass(frozen=True)
class Solution:
    """A choice of options, built.

    Attributes:
        picks: The option of every weight.
        spent: What the whole model is predicted to cost.
        decisions: The decisions, none where every site stays as it is.
        trial: Index of its trial; None where it was not measured.
    """

    picks: list[int]
    spent: Option
    decisions: list[Decision]
    trial: int | None = None


def predictions(problem: Problem, spent: Option) -> dict[str, Any]:
    """What a trial of a report says of a solution's size and speed."""
    timed = problem.timed and spent.seconds
    return {
        "bytes": spent.bytes,
        "predicted_tok_s": rounded(1 / spent.seconds) if timed else None,
    }


class LimitSearch(TrialSearch[Solution]):
    """The largest predicted loss whose solution is within the limits of quality, as measured."""

    most_trials, share, enough = 6, 0.96, 0.9

    def __init__(self, problem: Problem, fits: Fits) -> None:
        """Begins a search.

        Args:
            problem: The options and the limits.
            fits: Makes and measures candidates.
        """
        super().__init__()
        self.problem, self._fits = problem, fits
        self._allowed = math.inf if problem.bound is None else problem.bound
        self._factor = FIRST_FACTOR

    def find(self) -> Solution:
        """The best solution within the limits.

        Raises:
            TamizError: There is none.
        """
        if (best := self.run()) is None:
            raise TamizError(self._missed())
        return best.candidate

    def first(self) -> float:
        """The limit, by the usual ratio of measured to predicted losses."""
        return math.inf if self.problem.first is None else self.problem.first

    def measure(self, number: float) -> Tried[Solution] | None:
        """The solution for a largest predicted loss, unless it was tried."""
        picks = self.problem.solve(None if self.problem.bound is None else number)
        if any(picks == trial.candidate.picks for trial in self.tried):
            return None
        trial = self._fits.try_out(self.problem, picks, self._factor)
        if math.isfinite(trial.used):
            lost = max(trial.used, 0.0) * self._allowed
            self._factor = lost / trial.number if trial.number else 0.0
        return trial

    def is_enough(self) -> bool:
        """Also where no limit of quality is set, and where a further trial could save nothing."""
        unlimited = self.problem.bound is None
        return unlimited or super().is_enough() or alike(self.within, self.beyond)

    def next(self) -> float:
        """See `TrialSearch`; a prediction of no loss is no limit."""
        return super().next() or self._allowed

    def aim(self) -> float:
        """Where a line says that `share` of the limits is used.

        The line goes through two trials: the closest ones around the limits, else the last two. A
        single trial is scaled. Scaling alone would come too slowly where techniques lose what no
        format gives back. Where the last two trials are on one side of the limits, the line is
        bent, and the middle comes closer.
        """
        within, beyond, last = self.within, self.beyond, self.tried[-1]
        target = self.share * last.number / max(last.used, 1e-9)
        ends = [within, beyond] if within and beyond else self.tried[-2:]
        if len(ends) == 2:
            first, second = ends
            apart = second.number - first.number
            slope = (second.used - first.used) / apart if apart else 0.0
            if within and beyond and last.holds == self.tried[-2].holds:
                target = (first.number + second.number) / 2
            elif 0 < slope < math.inf:
                target = second.number + (self.share - second.used) / slope
        return min(max(target, last.number / self.step), last.number * self.step)

    def predicted(self, problem: Problem) -> Solution:
        """The best solution of another problem by prediction alone.

        The prediction takes the limits as widely as any trial of this search lets it.
        """
        allowed = self.problem.bound
        if allowed is not None:
            widest = [trial.number / trial.used for trial in self.tried if trial.used > 0]
            allowed = max([allowed, *widest])
        picks = problem.solve(allowed)
        return Solution(picks, problem.spent(picks), self._fits.of(problem, picks))

    def another(self, problem: Problem) -> LimitSearch:
        """A search of another problem, with the same fits."""
        return LimitSearch(problem, self._fits)

    def _missed(self) -> str:
        """Why no trial is within the limits: what the closest one lost."""
        closest = min(self.tried, key=lambda trial: (trial.used, trial.number))
        judge, trials = self._fits.candidates.judge, self._fits.candidates.trials
        losses, remedy = judge.missed_words(trials[closest.candidate.trial or 0])
        force = self.problem.goal.force
        fewer = f", or --force fewer of {', '.join(force)}" if force else ""
        return (
            f"no trial is within the limits: the closest loses {' and '.join(losses)}; "
            f"{remedy}{fewer}"
        )


def alike(within: Tried[Solution] | None, beyond: Tried[Solution] | None) -> bool:
    """Whether the closest trial beyond the limits saves next to nothing against the best within."""
    if within is None or beyond is None:
        return False
    ours, closer = within.candidate.spent, beyond.candidate.spent
    pairs = (ours.seconds, closer.seconds), (ours.bytes, closer.bytes)
    return all(less >= (1 - _ALIKE) * own for own, less in pairs)


def _choice(decision: Decision) -> Choice:
    """What a decision applies or is going to fit."""
    return decision.fitted[0].choice if decision.fitted else decision.waiting[0][0]


def _key(decision: Decision) -> tuple[str, str, str]:
    """Site, technique and configuration of a decision."""
    choice = _choice(decision)
    config = json.dumps(choice.config.model_dump(mode="json"), sort_keys=True)
    return decision.site_plan.site.id, choice.technique.name, config
