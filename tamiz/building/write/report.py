"""Makes the report of a build: what was decided at every site, why, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tamiz import __version__
from tamiz.api.site import Site
from tamiz.api.technique import Resource, Technique
from tamiz.building.decision import Decision, by_site
from tamiz.building.fit.fitting import Attempt, Fitted
from tamiz.building.write.rewriting import strips
from tamiz.calibration.calibration import Calibration, fingerprint
from tamiz.planning.plan import Plan, describe
from tamiz.planning.policy import Rules
from tamiz.reporting import report as reports
from tamiz.reporting.gate import WholeModelGate
from tamiz.reporting.record import Metrics
from tamiz.reporting.report import Report
from tamiz.survey.survey import Survey

if TYPE_CHECKING:
    from tamiz.api.passes import Note


@dataclass(frozen=True)
class BuildResult:
    """What a build has result.

    Attributes:
        survey: The dense bundle's graph.
        plan: What was planned.
        calibration: The calibration that was used.
        domains: The domains of text that the calibration read; None where a file was given.
        decisions: The decisions as they were written.
        refused: Techniques that were refused, by site id.
        notes: What graph passes left as it was, and why.
        constant_bytes: Bytes of all constants of the dense model, and of the built one.
        check: Comparison with the dense model; see `tamiz.survey.self_check.compare`.
        gate: The gate of the whole model.
        seconds: Seconds by step.
    """

    survey: Survey
    plan: Plan
    calibration: Calibration | None
    domains: tuple[str, ...] | None
    decisions: Sequence[Decision]
    refused: Mapping[str, Sequence[str]]
    notes: Iterable[Note]
    constant_bytes: tuple[int, int]
    check: Mapping[str, float]
    gate: WholeModelGate
    seconds: Mapping[str, float]


def make_report(result: BuildResult) -> Report:
    """Makes the report; a composite site is part of it where something was chosen for it."""
    plan, source = result.plan, result.survey.bundle.manifest.source
    there = by_site(result.decisions)
    sites = {
        p.site.id: _site(p.site, result, there.get(p.site.id, []))
        for p in plan.sites
        if p.site.weight is not None or p.choices
    }
    weights = [sites[p.site.id] for p in plan.sites if p.site.weight is not None]
    return Report(
        tamiz=__version__,
        source=source.name,
        source_sha256=source.sha256,
        fingerprint=fingerprint(result.survey.bundle),
        build=_choices(plan, result.calibration, result.domains),
        totals=_totals(weights, result.constant_bytes),
        gate=result.gate,
        check=dict(result.check),
        sites=sites,
        conflicts=[reports.ConflictReport(**asdict(conflict)) for conflict in plan.conflicts],
        dropped=[reports.Dropped(site=site, technique=name) for site, name in plan.dropped],
        notes=[reports.NoteReport(**asdict(note)) for note in result.notes],
        seconds=dict(result.seconds),
    )


def _choices(
    plan: Plan, calibration: Calibration | None, domains: tuple[str, ...] | None
) -> reports.Choices:
    policy = plan.policy_file
    chosen = describe(plan.choices)
    return reports.Choices(
        policy_file=policy.file if policy else None,
        policy_hash=plan.policy,
        policy_version=policy.value["version"] if policy else None,
        policy=dict(policy.value) if policy else None,
        techniques={name: reports.TechniqueChoice(**entry) for name, entry in chosen.items()},
        calibration=calibration.digest if calibration else None,
        calibration_tokens=calibration.count if calibration else None,
        domains=None if domains is None else list(domains),
    )


def _totals(
    weights: Sequence[reports.SiteReport], constant_bytes: tuple[int, int]
) -> reports.Totals:
    replaced = [site for site in weights if site.applied]
    return reports.Totals(
        sites=len(weights),
        replaced=len(replaced),
        exact=sum(site.exact for site in replaced),
        bytes_before=constant_bytes[0],
        bytes_after=constant_bytes[1],
    )


def _site(site: Site, result: BuildResult, decisions: Sequence[Decision]) -> reports.SiteReport:
    plan, before = result.plan, result.survey.weight_bytes(site)
    rules = plan.rules[site.id]
    applied = [d.accepted for d in decisions if d.accepted is not None]
    weights = [a.stored for a in applied if a.choice.technique.cost is not None]
    added = [a.stored for a in applied if a.choice.technique.cost is None]
    outcomes = [outcome for decision in decisions for outcome in decision.outcomes()]
    shown = applied[0] if applied else outcomes[0][0].attempt if outcomes else None
    reasons = [f"{fitted.attempt.choice.technique.name}: {why}" for fitted, _, why in outcomes]
    return reports.SiteReport(
        kind=site.kind.value,
        node=site.node,
        layer=site.layer,
        tensor=site.tensor,
        shape=(site.out_features, site.in_features),
        bytes_before=before,
        bytes_after=(sum(weights) if weights else before) + sum(added),
        techniques=[_fitted(plan, site, *outcome) for outcome in outcomes],
        resolved=reports.ResolvedPolicy(
            enable=rules.enable,
            strip=rules.strip,
            policy=dict(rules.resolved),
            policy_from=dict(rules.origins),
        ),
        gating=_gating(rules, site, shown),
        autotune=reports.Autotune(
            enabled=rules.tuning.enabled,
            attempts=[_attempt(a) for fitted, _, _ in outcomes for a in fitted.attempts],
        ),
        decision=reports.SiteDecision(
            applied=[a.choice.technique.name for a in applied],
            emit_delta=any(_emits(a.choice.technique) for a in applied),
            refused=list(result.refused.get(site.id, ())),
            strip_applied=bool(applied) and all(strips(plan, site, a.choice) for a in applied),
            reason="; ".join(reasons) or "no technique was chosen here",
        ),
    )


def _emits(technique: Technique) -> bool:
    owns = any(claim.resource is Resource.WEIGHTS for claim in technique.claims)
    return owns and not technique.default


def _fitted(
    plan: Plan, site: Site, fitted: Fitted, applied: bool, reason: str
) -> reports.FittedTechnique:
    return reports.FittedTechnique(
        name=fitted.attempt.choice.technique.name,
        config=_config(fitted.attempt),
        config_from=_config_from(plan, site, fitted),
        metrics=_metrics(fitted.attempt),
        bits_per_weight=fitted.attempt.bits_per_weight,
        decision=reports.DecisionReport(applied=applied, reason=reason),
    )


def _gating(rules: Rules, site: Site, shown: Attempt | None) -> reports.GatingReport:
    gate = rules.gate(shown.choice.technique, site.kind) if shown else rules.gating
    verdict = shown.verdict if shown else None
    judged = verdict.metric if verdict else None
    requested = gate.metric.removeprefix("cos_").replace("xw", "x_w")
    return reports.GatingReport(
        **asdict(gate),
        judged=None if judged is None else f"cos_{judged}",
        fallback=judged is not None and judged != requested,
        mean=_finite(verdict.mean) if verdict else None,
        p05=_finite(verdict.p05) if verdict else None,
        passed=verdict is not None and verdict.refusal is None,
    )


def _attempt(attempt: Attempt) -> reports.AttemptReport:
    return reports.AttemptReport(
        technique=attempt.choice.technique.name,
        config=_config(attempt),
        metrics=_metrics(attempt),
        bits_per_weight=attempt.bits_per_weight,
        bytes=attempt.stored,
        passed=attempt.verdict.refusal is None,
        reason=attempt.verdict.refusal,
        seconds=attempt.seconds,
    )


def _config(attempt: Attempt) -> dict[str, Any]:
    return attempt.choice.config.model_dump(mode="json")


def _config_from(plan: Plan, site: Site, fitted: Fitted) -> dict[str, str]:
    """What set each field: ``autotune``, a place in the policy, ``requested``, or ``default``."""
    technique = fitted.choice.technique
    planned, tried = fitted.choice.config, fitted.attempt.choice.config
    placed = plan.rules[site.id].field_origins.get(technique.name, {})
    base = next((c.config for c in plan.choices if c.technique.name == technique.name), planned)
    origins = dict.fromkeys(base.model_fields_set, "requested") | dict(placed)
    return {
        name: origins.get(name, "default")
        if getattr(planned, name) == getattr(tried, name)
        else "autotune"
        for name in technique.config.model_fields
    }


def _metrics(attempt: Attempt) -> Metrics:
    return {name: _finite(value) for name, value in attempt.metrics.items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
