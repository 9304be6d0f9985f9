"""The gate of the whole model: perplexity of the built model against dense on calibration text.

    Δppl = max(ppl / ppl_dense, ppl₁₆ / ppl_dense₁₆) − 1  ≤  max_dppl
    KL(dense ‖ built)                                     ≤  ln(1 + max_dppl)

and of an encoder the cosine of the embeddings of texts by both models, in the mean:

    1 − cos                                               ≤  1 − min_cosine

with ppl₁₆ over positions from 16 on. Where a technique acts on steps only, the model that reads in
steps counts as well; see `tamiz.building.search.candidates` and `tamiz.evaluation.evaluate`. KL is
what ln(ppl) loses on text that dense writes itself. It varies less from window to window than Δppl,
so it shows a loss that a few windows hide by chance.

A model beyond the budget backs sites off, the worst first: a site takes autotune's next
configuration, and in the end its fallback. The worst site is the one whose fit has the largest
damage 1 − cos². The number of sites to back off is predicted from

    loss = max(ln(1 + Δppl), KL) or 1 − cos ≈ F · Σ (share of the weights) · (1 − cos²)

with F = 50 at first (measured: 35 to 60), and the last trial's own F later. A trial builds a
candidate and runs it in onnxruntime.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tamiz.building.fit.fitting import Attempt
from tamiz.building.fit.selection import Slot
from tamiz.reporting.gate import Trial

#: F of the first prediction.
_FACTOR = 50.0
#: Largest number of trials of one search; the last one backs off everything lossy.
_TRIALS = 6
#: Share of the budget that ends the search.
_ENOUGH = 0.5
#: F is raised by 1 / this, so that the next trial rather holds.
_MARGIN = 0.9
#: Losses below this are treated as equal.
_NOISE = 1e-6

#: Quality of a candidate with these slots, as `tamiz.evaluation.evaluate.Comparison` has it.
Evaluate = Callable[[Sequence[Slot]], "dict[str, float]"]
Fill = Callable[[Sequence[Slot]], "list[Slot]"]


@dataclass(frozen=True)
class Gated:
    """What the gate keeps.

    Attributes:
        slots: The slots, some of them backed off.
        trials: The candidates that were measured, in order.
    """

    slots: list[Slot]
    trials: list[Trial]

    @property
    def built(self) -> int | None:
        """Index of the trial that is built, the last one that holds; None where nothing lossy is
        left, or nothing was tried."""
        if not lossy(self.slots):
            return None
        return max((index for index, trial in enumerate(self.trials) if trial.holds), default=None)


def lossy(slots: Sequence[Slot]) -> list[int]:
    """Indices of the slots whose fit is lossy, worst first."""
    indices = [
        index
        for index, slot in enumerate(slots)
        if slot.accepted is not None and not slot.accepted.exact
    ]
    return sorted(indices, key=lambda index: (-_damage(slots[index].accepted), index))


@dataclass
class Trials:
    """Candidates, built and measured.

    Attributes:
        allowed: Largest loss, see `lost`.
        evaluate: Builds and measures a candidate.
        fill: Fits what a candidate's slots have no fit of yet.
        of_texts: Whether losses are those of an encoder.
        tried: The candidates so far, for the report.
    """

    allowed: float
    evaluate: Evaluate
    fill: Fill
    of_texts: bool = False
    tried: list[Trial] = field(default_factory=list)

    def loss(
        self,
        candidate: Sequence[Slot],
        refused: Sequence[str],
        predicted: float | None,
        strength: float | None = None,
    ) -> float:
        """What a candidate loses, see `lost`.

        Args:
            candidate: Its slots.
            refused: Ids of the sites that do without the technique, for the report.
            predicted: Predicted loss, for the report.
            strength: The techniques' common strength, for the report.
        """
        quality = self.evaluate(candidate)
        loss = lost(quality)
        measured: dict[str, Any] = {name: rounded(value) for name, value in quality.items()}
        self.tried.append(
            Trial(
                refused=list(refused),
                predicted=None if predicted is None else reported(predicted, self.of_texts),
                strength=strength,
                holds=loss <= self.allowed,
                **measured,
            )
        )
        return loss


def reported(loss: float, of_texts: bool) -> float | None:
    """A predicted loss as the report has it: as Δppl, of an encoder as 1 − cosine."""
    return rounded(loss if of_texts else math.expm1(min(loss, 700.0)))


def lost(quality: Mapping[str, float]) -> float:
    """What a budget bounds: the larger of ln(1 + Δppl) and KL, in nats per token, of an encoder
    1 − cosine.

    Args:
        quality: As `Evaluate` gives it.

    Returns:
        The loss; infinite if a measurement is not a number.
    """
    if "cosine" in quality:
        losses = [1 - quality["cosine"]]
    else:
        losses = [math.log1p(quality["dppl"]), diverged(quality)]
    return max(losses) if all(map(math.isfinite, losses)) else math.inf


def diverged(quality: Mapping[str, float]) -> float:
    """The larger KL divergence, of prompts or of steps where these were read as well."""
    kl_mean = quality["kl_mean"]
    return max(kl_mean, quality.get("kl_decode", kl_mean))


def hold_to_budget(slots: list[Slot], trials: Trials) -> Gated:
    """Backs slots off, worst first, until the whole model is good enough.

    Args:
        slots: What the gates of the single tensors accepted.
        trials: Measures candidates.
    """
    holds = False
    while not holds and (worst := lossy(slots)):
        slots, holds = _Search(slots, worst, trials).run()
    return Gated(slots, trials.tried)


@dataclass
class _Search:
    """The smallest number of the worst sites to back off so that the model is within the budget.

    Attributes:
        slots: The slots before the search.
        worst: Indices of the slots that may be backed off, worst first.
        trials: Measures candidates.
    """

    slots: list[Slot]
    worst: list[int]
    trials: Trials

    def run(self) -> tuple[list[Slot], bool]:
        """The slots after the search, and whether they hold; if not, all `worst` are backed off."""
        damage = [_share(self.slots, i) * _damage(self.slots[i].accepted) for i in self.worst]
        factor, fails, good = _FACTOR, -1, None
        most, allowed = len(self.worst), self.trials.allowed
        for trial in range(_TRIALS):
            last = trial == _TRIALS - 1 and good is None
            guess = most if last else _first_within(damage, allowed / factor)
            count = min(guess, most) if guess > fails else (fails + most + 1) // 2
            candidate = self.trials.fill(_back_off(self.slots, self.worst[:count]))
            rest = sum(_share(candidate, i) * _damage(candidate[i].accepted) for i in self.worst)
            loss = self._try(candidate, count, factor * rest)
            if loss > allowed:
                fails = count
            else:
                good, most, best = count, count - 1, candidate
            if fails >= most or (good == count and loss >= _ENOUGH * allowed):
                break
            factor = max(loss, _NOISE) / rest / _MARGIN if rest > 0 else factor / 2
        return (best, True) if good is not None else (candidate, False)

    def _try(self, candidate: list[Slot], count: int, predicted: float) -> float:
        """What a candidate without the first `count` of the worst loses."""
        if not lossy(candidate):
            return 0.0
        refused = [self.slots[index].site_plan.site.id for index in self.worst[:count]]
        return self.trials.loss(candidate, refused, predicted)


def _first_within(damage: Sequence[float], allowed: float) -> int:
    """How many first items to leave out so that the sum of the others is at most `allowed`."""
    rest = sum(damage)
    for count, value in enumerate(damage):
        if rest <= allowed:
            return count
        rest -= value
    return len(damage)


def _back_off(slots: Sequence[Slot], indices: Sequence[int]) -> list[Slot]:
    chosen = set(indices)
    return [slot.back_off() if index in chosen else slot for index, slot in enumerate(slots)]


def _damage(attempt: Attempt | None) -> float:
    """1 − cos² of a fit; without a cosine rel_l2² of the weight or output, at most 1; 1 where
    nothing was measured."""
    if attempt is None:
        return 0.0
    cosine = attempt.verdict.mean
    if cosine is None:
        metrics = attempt.metrics
        return min(1.0, metrics.get("rel_l2", metrics.get("output_rel_l2", 1.0)) ** 2)
    return max(0.0, 1.0 - cosine * cosine)


def _share(slots: Sequence[Slot], index: int) -> float:
    """The site's part of all weights."""
    weights = {s.site_plan.site.weight: _size(s) for s in slots}
    return _size(slots[index]) / max(1, sum(weights.values()))


def _size(slot: Slot) -> int:
    return slot.site_plan.site.in_features * slot.site_plan.site.out_features


def rounded(value: float) -> float | None:
    """Four digits; None for what is not a number."""
    return float(f"{value:.4g}") if math.isfinite(value) else None
