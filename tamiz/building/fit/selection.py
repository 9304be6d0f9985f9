"""Decides which fit each site gets: the chosen technique's, a fallback's, or none (dense)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.api.site import SiteKind
from tamiz.api.technique import Resource
from tamiz.building.fit.fitting import Attempt, Fitted, Job, fit_all
from tamiz.building.fit.workers import Workers
from tamiz.calibration.file import Calibration
from tamiz.planning.choice import Choice
from tamiz.planning.plan import Plan
from tamiz.planning.resolver import SitePlan
from tamiz.survey.survey import Survey, reading

if TYPE_CHECKING:
    from tamiz.api.statistics import Sensitivity

#: Reason of a refusal after the fit of the site has passed its own gate.
_BACKED_OFF = "backed off by the gate of the whole model"


@dataclass(frozen=True)
class Slot:
    """One place for a technique at a site, and the candidates for it.

    Attributes:
        site_plan: The site's plan.
        waiting: Candidates that are not fitted yet: the chosen technique, then its fallbacks, each
            with the number of its configurations that were tried before.
        fitted: Results so far.
        backed_off: Number of passed fits that the gate of the whole model has refused.
        left_out: Reason why the accepted fit was not written after all; None if it was.
    """

    site_plan: SitePlan
    waiting: tuple[tuple[Choice, int], ...]
    fitted: tuple[Fitted, ...] = field(default=())
    backed_off: int = 0
    left_out: str | None = None

    @property
    def passed(self) -> list[Fitted]:
        """Fits that passed the gate and that the whole model allows, in order."""
        return [fitted for fitted in self.fitted if fitted.passed][self.backed_off :]

    @property
    def accepted(self) -> Attempt | None:
        """The fit that this slot applies; None if the slot is empty."""
        return self.passed[0].attempt if self.passed and self.left_out is None else None

    @property
    def needs_fit(self) -> bool:
        """Whether the slot is empty and a candidate is left to try."""
        return not self.passed and bool(self.waiting)

    def back_off(self) -> Slot:
        """Refuses the accepted fit; autotune's next configuration comes before the fallbacks."""
        refused = self.passed[0]
        more = ((refused.choice, refused.tried),) if refused.left else ()
        return replace(self, backed_off=self.backed_off + 1, waiting=(*more, *self.waiting))

    def decisions(self) -> list[tuple[Fitted, bool, str]]:
        """For what was fitted: whether it is applied, and why."""
        passed = [fitted for fitted in self.fitted if fitted.passed]
        result = []
        for fitted in self.fitted:
            if not fitted.passed:
                refusal = fitted.attempt.verdict.refusal
                result.append((fitted, False, f"refused: {refusal}"))
            elif passed.index(fitted) < self.backed_off:
                result.append((fitted, False, f"refused: {_BACKED_OFF}"))
            elif self.left_out is not None:
                result.append((fitted, False, f"refused: {self.left_out}"))
            else:
                result.append((fitted, True, "passed the gate"))
        return result


@dataclass(frozen=True)
class Fitter:
    """Fits the slots of a plan.

    Attributes:
        survey: The dense bundle's graph.
        plan: The plan.
        calibration: Statistics of the inputs; None without calibration.
        sensitivities: What errors of the inputs cost, by site id, of the sites where it is known.
        folder: Folder that keeps the fits.
        workers: Processes or cluster that fit.
        progress: Called for every fit.
    """

    survey: Survey
    plan: Plan
    calibration: Calibration | None
    sensitivities: Mapping[str, Sensitivity]
    folder: Path
    workers: Workers
    progress: Callable[[str, int, int], None]

    def slots(self) -> list[Slot]:
        """All slots of the plan, fitted."""
        return self.fill([slot for plan in self.plan.sites for slot in slots_of(plan)])

    def fill(self, slots: Sequence[Slot]) -> list[Slot]:
        """Fits candidates until every slot has an accepted fit or no candidate is left."""
        slots = list(slots)
        while todo := [index for index, slot in enumerate(slots) if slot.needs_fit]:
            jobs = [self._job(slots[index]) for index in todo]
            results = fit_all(jobs, self.workers, self.progress)
            for index, result in zip(todo, results, strict=True):
                slot = slots[index]
                slots[index] = replace(
                    slot, fitted=(*slot.fitted, result), waiting=slot.waiting[1:]
                )
        return slots

    @cached_property
    def _linear_weights(self) -> int:
        """Weights of all linear sites."""
        linear = (site for site in self.survey.sites if site.kind == SiteKind.LINEAR)
        return sum(site.in_features * site.out_features for site in linear)

    def _job(self, slot: Slot) -> Job:
        site, (choice, skip) = slot.site_plan.site, slot.waiting[0]
        weight = None
        if site.weight is not None:
            tensor = self.survey.model.graph.initializers[site.weight].const_value
            assert tensor is not None
            with reading(self.survey.bundle):  # mapped: another process gets its place in the file
                weight = tensor.numpy()
        known = self.calibration
        reader = self.survey.multiplying(site)
        statistics = None if known is None else known.statistics(reader.id)
        if statistics is not None:
            share = site.in_features * site.out_features / max(1, self._linear_weights)
            found = self.sensitivities.get(site.id)
            statistics = replace(statistics, sensitivity=found, weight_share=share)
        return Job(
            site,
            choice,
            self.plan.rules[site.id],
            weight,
            statistics,
            None if known is None else known.digest,
            self.folder,
            skip,
        )


def slots_of(site_plan: SitePlan) -> list[Slot]:
    """The slots of a site's plan, nothing of them fitted."""
    slots = []
    for choice in site_plan.choices:
        owns = any(claim.resource is Resource.WEIGHTS for claim in choice.technique.claims)
        fallbacks = site_plan.fallbacks if owns else ()
        slots.append(Slot(site_plan, tuple((owner, 0) for owner in (choice, *fallbacks))))
    return slots


def accepted(slots: Iterable[Slot]) -> dict[str, list[Attempt]]:
    """Fits to apply by site id, in order; none after a slot that stays empty.

    Techniques after an empty slot may need what that slot would have provided.
    """
    attempts: dict[str, list[Attempt]] = {}
    closed: set[str] = set()
    for slot in slots:
        site = slot.site_plan.site.id
        if slot.accepted is None:
            closed.add(site)
        elif site not in closed:
            attempts.setdefault(site, []).append(slot.accepted)
    return attempts


def leave_out(slots: Iterable[Slot], refused: Mapping[tuple[str, str], str]) -> list[Slot]:
    """The slots after the rewrites: at a site, all slots after an empty slot are empty.

    Args:
        slots: The slots that were written.
        refused: Reason why a rewrite changed nothing, by site id and technique's name.
    """
    result = []
    closed: dict[str, str] = {}
    for slot in slots:
        site = slot.site_plan.site.id
        candidate = slot.accepted or slot.fitted[0].attempt
        name = candidate.choice.technique.name
        reason = refused.get((site, name))
        if site in closed:
            reason = f"{closed[site]}, which comes before it, was refused"
        slot = replace(slot, left_out=reason)
        if slot.accepted is None:
            closed.setdefault(site, name)
        result.append(slot)
    return result


def refused(slots: Iterable[Slot]) -> dict[str, list[str]]:
    """Techniques that a gate, their own fit or their rewrite refused, by site id."""
    names_at: dict[str, list[str]] = {}
    for slot in slots:
        decisions = [(f.choice.technique.name, applied) for f, applied, _ in slot.decisions()]
        names = dict.fromkeys(name for name, _ in decisions if (name, True) not in decisions)
        if names:
            names_at.setdefault(slot.site_plan.site.id, []).extend(names)
    return names_at


def by_site(slots: Iterable[Slot]) -> Mapping[str, list[Slot]]:
    """Slots by site id, in order."""
    slots_at: dict[str, list[Slot]] = {}
    for slot in slots:
        slots_at.setdefault(slot.site_plan.site.id, []).append(slot)
    return slots_at
