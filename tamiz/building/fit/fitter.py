"""Fits the decisions of a plan: candidates are tried until one passes the gate of its tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.api.site import SiteKind
from tamiz.building.decision import Decision, decisions_of
from tamiz.building.fit.fitting import Job, fit_all
from tamiz.building.fit.workers import Workers
from tamiz.calibration.calibration import Calibration
from tamiz.planning.plan import Plan
from tamiz.survey.survey import Survey, reading
from tamiz.system.progress import Progress

if TYPE_CHECKING:
    from tamiz.api.statistics import Sensitivity


@dataclass(frozen=True)
class Fitter:
    """Fits the decisions of a plan.

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
    progress: Progress

    def decisions(self) -> list[Decision]:
        """All decisions of the plan, fitted."""
        return self.fill([decision for plan in self.plan.sites for decision in decisions_of(plan)])

    def fill(self, decisions: Sequence[Decision]) -> list[Decision]:
        """Fits candidates until every decision has an accepted fit or no candidate is left."""
        decisions = list(decisions)
        while waiting := [index for index, decision in enumerate(decisions) if decision.needs_fit]:
            jobs = [self._job(decisions[index]) for index in waiting]
            results = fit_all(jobs, self.workers, self.progress)
            for index, result in zip(waiting, results, strict=True):
                decision = decisions[index]
                decisions[index] = replace(
                    decision, fitted=(*decision.fitted, result), waiting=decision.waiting[1:]
                )
        return decisions

    @cached_property
    def _linear_weights(self) -> int:
        """Weights of all linear sites."""
        linear = (site for site in self.survey.sites if site.kind == SiteKind.LINEAR)
        return sum(site.in_features * site.out_features for site in linear)

    def _job(self, decision: Decision) -> Job:
        site, (choice, skip) = decision.site_plan.site, decision.waiting[0]
        weight = None
        if site.weight is not None:
            tensor = self.survey.model.graph.initializers[site.weight].const_value
            assert tensor is not None
            with reading(self.survey.bundle):  # mapped: another process gets its place in the file
                weight = tensor.numpy()
        calibration = self.calibration
        reader = self.survey.multiplying(site)
        statistics = None if calibration is None else calibration.statistics(reader.id)
        if statistics is not None:
            share = site.in_features * site.out_features / max(1, self._linear_weights)
            sensitivity = self.sensitivities.get(site.id)
            statistics = replace(statistics, sensitivity=sensitivity, weight_share=share)
        return Job(
            site,
            choice,
            self.plan.rules[site.id],
            weight,
            statistics,
            None if calibration is None else calibration.digest,
            self.folder,
            skip,
        )
