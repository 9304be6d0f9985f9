"""Searches for a choice that uses the limits of quality: predict, build, measure, correct."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tamiz.building.fit.selection import Slot, slots_of
from tamiz.building.search.back_off import (
    Evaluate,
    Fill,
    diverged,
    lossy,
    lost,
    reported,
    rounded,
)
from tamiz.building.search.problem import FIRST_FACTOR, Problem
from tamiz.building.search.solver import Rung
from tamiz.files.errors import TamizError
from tamiz.planning.choice import Choice
from tamiz.reporting.gate import Trial

#: Largest number of trials, the share of a limit that a trial aims at, the share that ends the
#: search, and the largest factor between the losses of two trials.
_TRIALS, _AIM, _ENOUGH, _STEP = 6, 0.96, 0.9, 4.0
#: Share of time and of bytes that a further trial could save and that is not worth one: losses of
#: models that are so alike differ by chance.
_ALIKE = 0.01
#: Largest predicted loss of a frontier, in nats per token.
_MOST_LOSS = 0.5


class Tried(NamedTuple):
    """What a trial was predicted to cost, and the share of the limits that it used."""

    predicted: Rung
    used: float


@dataclass
class LimitSearch:
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
    #: The trials of `run`.
    _tried: list[Tried] = field(default_factory=list)

    def run(self) -> None:
        """Finds the best trial within the limits.

        Raises:
            TamizError: There is none.
        """
        problem, target, seen = self.problem, self.problem.first, set()
        factor, self.built, self._tried = FIRST_FACTOR, None, []
        for _ in range(_TRIALS):
            picks = problem.solve(target)
            if tuple(picks) in seen:
                break
            seen.add(tuple(picks))
            candidate, predicted = self._candidate(picks), problem.spent(picks)
            used = self._try(candidate, picks, factor)
            self._tried.append(Tried(predicted, used))
            if used <= 1:
                self.best, self.picks, self.built = candidate, picks, len(self.trials) - 1
            if target is None or _ENOUGH <= used <= 1 or alike(*around(self._tried)):
                break
            if math.isfinite(used):
                lost = max(used, 0.0) * problem.allowed_loss
                factor = lost / predicted.loss if predicted.loss else 0.0
            target = next_loss(self._tried) or problem.allowed_loss
        if self.built is None:
            raise TamizError(self._missed())

    def _missed(self) -> str:
        """Why no trial is within the limits: what the closest one lost."""
        trials = zip(self._tried, self.trials[-len(self._tried) :], strict=True)
        closest = min(trials, key=lambda pair: (pair[0].used, pair[0].predicted.loss))[1]
        losses, remedy = [], "raise --max-dppl or --max-kl"
        if closest.dppl is not None:
            losses.append(f"{100 * closest.dppl:.2g} % of perplexity")
        if closest.kl is not None:
            losses.append(f"{closest.kl:.2g} nats of KL a token")
        if closest.cosine is not None:
            losses, remedy = [f"{1 - closest.cosine:.2g} of cosine"], "lower --min-cosine"
        force = self.problem.goal.force
        fewer = f", or --force fewer of {', '.join(force)}" if force else ""
        return (
            f"no trial is within the limits: the closest loses {' and '.join(losses)}; "
            f"{remedy}{fewer}"
        )

    def predicted(self, problem: Problem) -> LimitSearch:
        """A search of another problem that only predicted its best choice, and measured nothing.

        The prediction takes the limits as widely as any trial of this search lets it.
        """
        allowed = None
        if self.problem.allowed is not None:
            widest = [trial.predicted.loss / trial.used for trial in self._tried if trial.used > 0]
            allowed = max([self.problem.allowed, *widest])
        other = replace(self, problem=problem, picks=problem.solve(allowed))
        other.best = other._candidate(other.picks)
        return other

    def frontier(self, keep: Callable[[Trial], None]) -> None:
        """A trial for each point from the limit of KL on, some of them measured.

        The losses of the others are predicted, corrected by what was measured.

        Args:
            keep: Called with a trial that was measured, while its candidate is there.
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
            keep(self.trials[-1])
            predicted = problem.spent(picks).loss
            factors += [(self.trials[-1].kl_mean or 0.0) / predicted] if predicted else []
        factor = statistics.median(factors) if factors else 1.0
        self.trials = [
            measured.get(picks) or self._trial(picks, factor, holds=False) for picks in points
        ]

    def _trial(self, picks: Sequence[int], factor: float, **measured: Any) -> Trial:
        """A trial for the report: what was predicted for a choice, and what was measured."""
        spent = self.problem.spent(picks)
        timed = self.problem.timed and spent.seconds
        return Trial(
            refused=[],
            predicted=reported(factor * spent.loss, self.problem.of_texts),
            bytes=spent.bytes,
            predicted_tok_s=rounded(1 / spent.seconds) if timed else None,
            **measured,
        )

    def _try(self, candidate: list[Slot], picks: Sequence[int], factor: float) -> float:
        """The share of the limits of quality that a candidate uses, as measured."""
        quality, goal = self.score(candidate), self.problem.goal
        exact, shares = not lossy(candidate), [0.0]
        if goal.max_kl is not None:
            shares.append(_share(diverged(quality), goal.max_kl, exact))
        if goal.max_dppl is not None:
            shares.append(_share(lost(quality), math.log1p(goal.max_dppl), exact))
        if goal.min_cosine is not None:
            shares.append(_share(lost(quality), 1 - goal.min_cosine, exact))
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


def _share(loss: float, limit: float, exact: bool) -> float:
    """The share of a limit that a candidate uses: of a limit of 0 nothing, or infinitely much.

    Args:
        loss: The measured loss.
        limit: The largest accepted loss.
        exact: Whether no technique of the candidate changes a value. Then a loss above a limit of 0
            is rounding, since two programs add in different orders.
    """
    if limit > 0:
        return loss / limit
    return 0.0 if loss <= 0 or (exact and math.isfinite(loss)) else math.inf


def around(tried: Sequence[Tried]) -> tuple[Tried | None, Tried | None]:
    """The trial within the limits that was predicted to lose most, the one beyond them, least."""

    def loss(trial: Tried) -> float:
        return trial.predicted.loss

    within = max((trial for trial in tried if trial.used <= 1), key=loss, default=None)
    beyond = min((trial for trial in tried if not trial.used <= 1), key=loss, default=None)
    return within, beyond


def alike(within: Tried | None, beyond: Tried | None) -> bool:
    """Whether the closest trial beyond the limits saves next to nothing against the best within."""
    if within is None or beyond is None:
        return False
    ours, closer = within.predicted, beyond.predicted
    pairs = (ours.seconds, closer.seconds), (ours.bytes, closer.bytes)
    return all(less >= (1 - _ALIKE) * own for own, less in pairs)


def next_loss(tried: Sequence[Tried]) -> float:
    """The predicted loss of the next trial.

    A line through two trials, the closest ones around the limits or else the last two, says where
    `_AIM` of the limits is used. A single trial is scaled. Scaling alone would come too slowly
    where techniques lose what no format gives back. Where the last two trials are on one side of
    the limits, the line is bent, and the middle comes closer.
    """
    within, beyond = around(tried)
    loss, used = tried[-1].predicted.loss, tried[-1].used
    target = _AIM * loss / max(used, 1e-9)
    ends = [within, beyond] if within and beyond else tried[-2:]
    if len(ends) == 2:
        (loss_0, used_0), (loss_1, used_1) = ((end.predicted.loss, end.used) for end in ends)
        slope = (used_1 - used_0) / (loss_1 - loss_0) if loss_1 != loss_0 else 0.0
        if within and beyond and (tried[-1].used <= 1) == (tried[-2].used <= 1):
            target = (loss_0 + loss_1) / 2
        elif 0 < slope < math.inf:
            target = loss_1 + (_AIM - used_1) / slope
    target = min(max(target, loss / _STEP), loss * _STEP)
    low = within.predicted.loss if within else 0.0
    high = beyond.predicted.loss if beyond else _STEP * max(loss, low)
    return target if low < target <= high else math.sqrt(max(low, high / 16) * high)


def _choice(slot: Slot) -> Choice:
    """What a slot applies or is going to fit."""
    return slot.fitted[0].choice if slot.fitted else slot.waiting[0][0]


def _key(slot: Slot) -> tuple[str, str, str]:
    """Site, technique and configuration of a slot."""
    choice = _choice(slot)
    config = json.dumps(choice.config.model_dump(mode="json"), sort_keys=True)
    return slot.site_plan.site.id, choice.technique.name, config
