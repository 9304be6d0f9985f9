"""Turns techniques with a dial up as far as the whole model's budget allows.

First the rest is held to the budget (`tamiz.building.whole_model`); what is left of it is the
dial's. A trial sets one strength at all sites; the first is one whose fits foretell a loss near
the budget, where they foretell one, and the next follows from

    ln(1 + Δppl) ∝ strength²

until a trial that holds uses most of the budget. Where none holds, the technique acts nowhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tamiz.api.technique import Dial
from tamiz.building.selection import Slot
from tamiz.building.whole_model import Gated, Trials, hold, lossy, rounded
from tamiz.planning.resolver import Choice

_TRIALS = 7
#: The part of the budget that a trial aims at, and with which the search is content.
_AIM = 0.92
_CONTENT = 0.8
#: Most that the strength changes by between trials, as a factor.
_STEP = 4.0


def turnable(slots: Sequence[Slot]) -> list[int]:
    """Indices of the slots of techniques with a dial, where no fixed field decides instead."""
    return [index for index, slot in enumerate(slots) if slot.accepted and _dial(_choice(slot))]


def hold_and_turn(slots: list[Slot], trials: Trials) -> Gated:
    """Holds the whole model to its budget and spends what is left on the dials.

    Args:
        slots: What the gates of the single tensors accepted.
        trials: Measures candidates.
    """
    turned = turnable(slots)
    if not turned:
        return hold(slots, trials)
    rest = list(slots)
    for index in turned:
        rest[index] = replace(slots[index], backed_off=len(slots[index].passed))
    if lossy(rest):
        rest = hold(rest, trials).slots
    choices = {index: _choice(slots[index]) for index in turned}
    return Gated(_Search(rest, choices, trials).run() or rest, trials.tried)


@dataclass
class _Search:
    """The largest strength that the budget allows.

    Attributes:
        rest: The slots, empty where the dial acts.
        choices: What acts there, by index.
        trials: Measures candidates.
    """

    rest: list[Slot]
    choices: Mapping[int, Choice]
    trials: Trials

    def run(self) -> list[Slot] | None:
        """The slots at that strength; None where nothing holds."""
        strength, low, high, best = self._start(), 0.0, math.inf, None
        allowed = self.trials.allowed
        for _ in range(_TRIALS):
            candidate = self._at(strength)
            loss = self.trials.loss(candidate, [], self._predicted(candidate), rounded(strength))
            if loss <= allowed:
                low, best = strength, candidate
                if loss >= _CONTENT * allowed:
                    break
            else:
                high = strength
            wanted = math.sqrt(_AIM * allowed / loss) if loss > 0 else _STEP
            guess = strength * min(_STEP, max(1 / _STEP, wanted))
            strength = guess if low < guess < high else math.sqrt(max(low, high / 16) * high)
        return best

    def _start(self) -> float:
        """The dial's start, or near where the fits foretell what the budget allows."""
        dial = _dial(next(iter(self.choices.values())))
        assert dial is not None
        strength, allowed = dial.start, self.trials.allowed
        for _ in range(_TRIALS):
            predicted = self._predicted(self._at(strength))
            if predicted is None or allowed / _STEP <= predicted <= allowed:
                break
            wanted = math.sqrt(_AIM * allowed / max(predicted, _AIM * allowed / _STEP**2))
            strength *= max(1 / _STEP, wanted)
        return strength

    def _predicted(self, candidate: Sequence[Slot]) -> float | None:
        """The divergence that the fits foretell; None where they do not."""
        total = 0.0
        for index in self.choices:
            if (attempt := candidate[index].accepted) is not None:
                dial = _dial(attempt.choice)
                if dial is None or dial.loss is None or dial.loss not in attempt.metrics:
                    return None
                total += attempt.metrics[dial.loss]
        return rounded(total)

    def _at(self, strength: float) -> list[Slot]:
        candidate = list(self.rest)
        for index, choice in self.choices.items():
            dial = _dial(choice)
            assert dial is not None
            turned = choice.with_fields({dial.field: strength})
            candidate[index] = Slot(self.rest[index].site_plan, ((turned, 0),))
        return self.trials.fill(candidate)


def _choice(slot: Slot) -> Choice:
    """The configuration that stands at a slot."""
    assert slot.accepted is not None
    return slot.accepted.choice


def _dial(choice: Choice) -> Dial | None:
    """The dial of a choice, unless a field that is set decides instead."""
    dial = choice.technique.dial
    if dial is None or any(getattr(choice.config, field) is not None for field in dial.fixed):
        return None
    return dial
