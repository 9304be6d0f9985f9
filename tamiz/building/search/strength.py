"""Raises the strength of techniques as far as the budget of the whole model allows.

A technique with a `Strength` acts at all its sites with one number. First the other techniques are
held to the budget (`tamiz.building.search.back_off`); the rest of it is spent on the strength. The
first trial takes a strength whose predicted loss is near the budget, where fits predict one. Each
next trial follows from

    loss ∝ strength²

Where no trial is within the budget, the technique is not applied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tamiz.api.technique import Strength
from tamiz.building.decision import Decision, changes_a_value
from tamiz.building.search.back_off import hold_to_budget
from tamiz.building.search.candidates import Candidates, rounded
from tamiz.building.search.trial_search import TrialSearch, Tried
from tamiz.planning.choice import Choice


def adjustable(decisions: Sequence[Decision]) -> list[int]:
    """Indices of the decisions whose strength can be searched: no field sets it."""
    return [
        index
        for index, decision in enumerate(decisions)
        if decision.accepted and _strength(_choice(decision))
    ]


def spend_budget(decisions: list[Decision], candidates: Candidates) -> list[Decision]:
    """Holds the whole model to its budget and spends the rest of it on the strength.

    Args:
        decisions: Those whose fits passed the gates of the single tensors.
        candidates: Builds and measures.
    """
    indices = adjustable(decisions)
    if not indices:
        return hold_to_budget(decisions, candidates)
    rest = list(decisions)
    for index in indices:
        rest[index] = replace(decisions[index], backed_off=len(decisions[index].passed))
    if changes_a_value(rest):
        rest = hold_to_budget(rest, candidates)
    choices = {index: _choice(decisions[index]) for index in indices}
    best = StrengthSearch(rest, choices, candidates).run()
    return rest if best is None else best.candidate


class StrengthSearch(TrialSearch[list[Decision]]):
    """The largest strength that the budget allows."""

    most_trials, share, enough = 7, 0.92, 0.8

    def __init__(
        self, rest: list[Decision], choices: Mapping[int, Choice], candidates: Candidates
    ) -> None:
        """Begins a search.

        Args:
            rest: All decisions; those of the technique are empty.
            choices: The technique's configurations, by index of their decisions.
            candidates: Builds and measures.
        """
        super().__init__()
        self._rest, self._choices, self._candidates = rest, choices, candidates

    def first(self) -> float:
        """The technique's own start, or a strength whose predicted loss is near the budget."""
        strength = _strength(next(iter(self._choices.values())))
        assert strength is not None
        value, allowed = strength.start, self._candidates.limit
        for _ in range(self.most_trials):
            predicted = self._predicted(self._at(value))
            if predicted is None or allowed / self.step <= predicted <= allowed:
                break
            least = self.share * allowed / self.step**2
            value *= max(1 / self.step, math.sqrt(self.share * allowed / max(predicted, least)))
        return value

    def aim(self) -> float:
        """Scales the last strength, whose square the loss grows with."""
        value, loss = self.tried[-1].number, self.tried[-1].quality.loss
        allowed = self.share * self._candidates.limit
        factor = math.sqrt(allowed / loss) if loss > 0 else self.step
        return value * min(self.step, max(1 / self.step, factor))

    def measure(self, number: float) -> Tried[list[Decision]]:
        """The technique fitted at a strength."""
        candidate = self._at(number)
        quality = self._candidates.measure(
            candidate, predicted=self._predicted(candidate), strength=rounded(number)
        )
        return Tried(number, quality, candidate)

    def _predicted(self, candidate: Sequence[Decision]) -> float | None:
        """Sum of the losses that the fits predict, in nats a token; None where they do not."""
        total = 0.0
        for index in self._choices:
            if (attempt := candidate[index].accepted) is not None:
                strength = _strength(attempt.choice)
                if (
                    strength is None
                    or strength.loss is None
                    or strength.loss not in attempt.metrics
                ):
                    return None
                total += attempt.metrics[strength.loss]
        return rounded(total)

    def _at(self, value: float) -> list[Decision]:
        """The decisions with the technique fitted at a strength."""
        candidate = list(self._rest)
        for index, choice in self._choices.items():
            strength = _strength(choice)
            assert strength is not None
            changed = choice.with_fields({strength.field: value})
            candidate[index] = Decision(self._rest[index].site_plan, ((changed, 0),))
        return self._candidates.fill(candidate)


def _choice(decision: Decision) -> Choice:
    """The configuration that is accepted."""
    assert decision.accepted is not None
    return decision.accepted.choice


def _strength(choice: Choice) -> Strength | None:
    """The strength of a choice's technique; None where a field sets it, or there is none."""
    strength = choice.technique.strength
    if strength is None:
        return None
    is_set = any(getattr(choice.config, field) is not None for field in strength.fixed)
    return None if is_set else strength
