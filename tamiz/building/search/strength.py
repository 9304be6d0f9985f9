"""Raises the strength of techniques as far as the budget of the whole model allows.

A technique with a `Strength` acts at all its sites with one number. First the other techniques are
held to the budget (`tamiz.building.search.back_off`); the rest of it is spent on the strength. The
first trial takes a strength whose predicted loss is near the budget, where fits predict one.
Each next trial follows from

    loss ∝ strength²

until a trial within the budget uses most of it. Where no trial is within the budget, the technique
is not applied.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tamiz.api.technique import Strength
from tamiz.building.fit.selection import Slot
from tamiz.building.search.back_off import Gated, Trials, hold_to_budget, lossy, rounded
from tamiz.planning.choice import Choice

_TRIALS = 7
#: Share of the budget that a trial aims at, and the share that ends the search.
_AIM = 0.92
_ENOUGH = 0.8
#: Largest factor between the strengths of two trials.
_STEP = 4.0


def adjustable(slots: Sequence[Slot]) -> list[int]:
    """Indices of the slots whose strength can be searched: no field sets it."""
    return [index for index, slot in enumerate(slots) if slot.accepted and _strength(_choice(slot))]


def spend_budget(slots: list[Slot], trials: Trials) -> Gated:
    """Holds the whole model to its budget and spends the rest of it on the strength.

    Args:
        slots: Slots with the fits that passed the gates of the single tensors.
        trials: Measures candidates.
    """
    indices = adjustable(slots)
    if not indices:
        return hold_to_budget(slots, trials)
    rest = list(slots)
    for index in indices:
        rest[index] = replace(slots[index], backed_off=len(slots[index].passed))
    if lossy(rest):
        rest = hold_to_budget(rest, trials).slots
    choices = {index: _choice(slots[index]) for index in indices}
    return Gated(_Search(rest, choices, trials).run() or rest, trials.tried)


@dataclass
class _Search:
    """The largest strength that the budget allows.

    Attributes:
        rest: All slots; those of the technique are empty.
        choices: The technique's configurations, by index of their slots.
        trials: Measures candidates.
    """

    rest: list[Slot]
    choices: Mapping[int, Choice]
    trials: Trials

    def run(self) -> list[Slot] | None:
        """The slots at that strength; None where no trial is within the budget."""
        value, low, high, best = self._start(), 0.0, math.inf, None
        allowed = self.trials.allowed
        for _ in range(_TRIALS):
            candidate = self._at(value)
            loss = self.trials.loss(candidate, [], self._predicted(candidate), rounded(value))
            if loss <= allowed:
                low, best = value, candidate
                if loss >= _ENOUGH * allowed:
                    break
            else:
                high = value
            factor = math.sqrt(_AIM * allowed / loss) if loss > 0 else _STEP
            guess = value * min(_STEP, max(1 / _STEP, factor))
            value = guess if low < guess < high else math.sqrt(max(low, high / 16) * high)
        return best

    def _start(self) -> float:
        """The technique's own start, or a strength whose predicted loss is near the budget."""
        strength = _strength(next(iter(self.choices.values())))
        assert strength is not None
        value, allowed = strength.start, self.trials.allowed
        for _ in range(_TRIALS):
            predicted = self._predicted(self._at(value))
            if predicted is None or allowed / _STEP <= predicted <= allowed:
                break
            factor = math.sqrt(_AIM * allowed / max(predicted, _AIM * allowed / _STEP**2))
            value *= max(1 / _STEP, factor)
        return value

    def _predicted(self, candidate: Sequence[Slot]) -> float | None:
        """Sum of the losses that the fits predict, in nats a token; None where they do not."""
        total = 0.0
        for index in self.choices:
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

    def _at(self, value: float) -> list[Slot]:
        """The slots with the technique fitted at a strength."""
        candidate = list(self.rest)
        for index, choice in self.choices.items():
            strength = _strength(choice)
            assert strength is not None
            changed = choice.with_fields({strength.field: value})
            candidate[index] = Slot(self.rest[index].site_plan, ((changed, 0),))
        return self.trials.fill(candidate)


def _choice(slot: Slot) -> Choice:
    """The configuration that is accepted at a slot."""
    assert slot.accepted is not None
    return slot.accepted.choice


def _strength(choice: Choice) -> Strength | None:
    """The strength of a choice's technique; None where a field sets it, or there is none."""
    strength = choice.technique.strength
    if strength is None:
        return None
    is_set = any(getattr(choice.config, field) is not None for field in strength.fixed)
    return None if is_set else strength
