"""Holds the whole model to its budget: backs sites off, the worst first, until it is within.

At a site that is backed off the technique takes autotune's next configuration, and in the end its
fallback. While sites have another configuration left, only these are backed off. The worst site is
the one whose fit has the largest damage 1 − cos², after those that their technique calls fragile.
The loss of a candidate is predicted as

    loss ≈ F · Σ (share of the weights) · (1 − cos²)        over the sites that keep their technique

with F = 50 at first (measured: 35 to 60), and the last trial's own F later. Where a fit measures no
damage at a site, such as that of inputs of 8 bits, nothing is predicted first: the first trial has
all sites.
"""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.building.decision import Decision, changes_a_value
from tamiz.building.fit.fitting import Attempt
from tamiz.building.search.candidates import Candidates, Fill
from tamiz.building.search.trial_search import TrialSearch, Tried
from tamiz.evaluation.judges.judge import Quality, share

#: F of the first prediction.
_FACTOR = 50.0
#: Losses below this are treated as equal.
_NOISE = 1e-6


def worst_first(decisions: Sequence[Decision]) -> list[int]:
    """Indices of the decisions whose fit is lossy, worst first."""
    indices = [
        index
        for index, decision in enumerate(decisions)
        if decision.accepted is not None and not decision.accepted.exact
    ]

    def rank(index: int) -> tuple[bool, float, int]:
        decision = decisions[index]
        return not decision.is_fragile, -_damage(decision.accepted), index

    return sorted(indices, key=rank)


def hold_to_budget(decisions: list[Decision], candidates: Candidates) -> list[Decision]:
    """Backs decisions off, worst first, until the whole model is within its budget.

    Args:
        decisions: What the gates of the single tensors accepted.
        candidates: Builds and measures.
    """
    known = None
    while worst := _first_to_go(decisions):
        search = BackOff(decisions, worst, candidates, known)
        if (best := search.run()) is not None:
            return best.candidate
        last = search.tried[-1]  # all of the worst are backed off
        decisions, known = last.candidate, last.quality
    return decisions


def without_losses(decisions: list[Decision], fill: Fill) -> list[Decision]:
    """Backs every decision off until nothing that is applied changes a value."""
    while worst := worst_first(decisions):
        decisions = fill(_back_off(decisions, worst))
    return decisions


class BackOff(TrialSearch[list[Decision]]):
    """The most sites that may keep their technique; the others are backed off, worst first."""

    most_trials, share, enough = 6, 0.9, 0.5

    def __init__(
        self,
        decisions: list[Decision],
        worst: Sequence[int],
        candidates: Candidates,
        known: Quality | None = None,
    ) -> None:
        """Begins a search.

        Args:
            decisions: The decisions before the search.
            worst: Indices of those that may be backed off, worst first.
            candidates: Builds and measures.
            known: What the decisions lose; None where it was not measured.
        """
        super().__init__()
        self._known = known
        self.lowest, self.highest = -1.0, len(worst) + 1.0
        self._decisions, self._worst, self._candidates = decisions, worst, candidates
        self._damage = [_share(decisions, i) * _damage(decisions[i].accepted) for i in worst]
        self._factor = _FACTOR

    def first(self) -> float:
        """As many as the prediction allows; all where there is none."""
        lossy = (self._decisions[index].accepted for index in worst_first(self._decisions))
        known = all(_measured(attempt) is not None for attempt in lossy)
        return self.aim() if known else float(len(self._worst))

    def aim(self) -> float:
        """As many as the prediction allows, and none in the last trial where no other one holds."""
        least = self.bracket()[0] + 1
        if self.left == 1 and self.best is None:
            return least
        refused = _first_within(self._damage, self._candidates.limit / self._factor)
        return max(len(self._worst) - refused, least)

    def middle(self, low: float, high: float) -> float:
        """The middle of the bracket; with the larger number where two are in the middle."""
        return float((low + high + 1) // 2)

    def is_enough(self) -> bool:
        """Whether the last trial ends the search, or no number is left between two trials."""
        low, high = self.bracket()
        return high <= low + 1 or super().is_enough()

    def measure(self, number: float) -> Tried[list[Decision]]:
        """Backs off all but so many."""
        refused = self._worst[: len(self._worst) - round(number)]
        candidate = self._candidates.fill(_back_off(self._decisions, refused))
        rest = sum(_share(candidate, i) * _damage(candidate[i].accepted) for i in self._worst)
        quality = Quality(0.0, None, share(0.0, self._candidates.limit, exact=True))
        if self._known is not None and not refused:
            quality = self._known
        elif changes_a_value(candidate):
            quality = self._candidates.measure(
                candidate,
                refused=[self._decisions[index].site_plan.site.id for index in refused],
                predicted=self._factor * rest,
            )
        self._factor = (
            max(quality.loss, _NOISE) / rest / self.share if rest > 0 else self._factor / 2
        )
        return Tried(number, quality, candidate)


def _first_to_go(decisions: Sequence[Decision]) -> list[int]:
    """The lossy decisions that have another configuration left, if any, else all; worst first."""
    worst = worst_first(decisions)
    return [index for index in worst if decisions[index].has_milder] or worst


def _first_within(damage: Sequence[float], allowed: float) -> int:
    """How many first items to leave out so that the sum of the others is at most `allowed`."""
    rest = sum(damage)
    for count, value in enumerate(damage):
        if rest <= allowed:
            return count
        rest -= value
    return len(damage)


def _back_off(decisions: Sequence[Decision], indices: Sequence[int]) -> list[Decision]:
    refused = set(indices)
    return [
        decision.back_off() if index in refused else decision
        for index, decision in enumerate(decisions)
    ]


def _damage(attempt: Attempt | None) -> float:
    """The damage of a fit; 1 where nothing was measured."""
    measured = _measured(attempt)
    return 1.0 if measured is None else measured


def _measured(attempt: Attempt | None) -> float | None:
    """1 − cos² of a fit; without a cosine rel_l2² of the weight or output, at most 1; None where
    nothing was measured."""
    if attempt is None:
        return 0.0
    cosine = attempt.verdict.mean
    if cosine is not None:
        return max(0.0, 1.0 - cosine * cosine)
    metrics = attempt.metrics
    distance = metrics.get("rel_l2", metrics.get("output_rel_l2"))
    return None if distance is None else min(1.0, distance**2)


def _share(decisions: Sequence[Decision], index: int) -> float:
    """The site's part of all weights."""
    weights = {each.site_plan.site.weight: _size(each) for each in decisions}
    return _size(decisions[index]) / max(1, sum(weights.values()))


def _size(decision: Decision) -> int:
    return decision.site_plan.site.in_features * decision.site_plan.site.out_features
