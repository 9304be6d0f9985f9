"""The report of a build: what was decided at every site, why, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tamiz import __version__
from tamiz.api.site import Site
from tamiz.building.fitting import Attempt, Fitted
from tamiz.building.rewriting import strips
from tamiz.building.selection import Slot, by_site, unsafe
from tamiz.calibration.file import Calibration
from tamiz.planning.plan import Plan, describe
from tamiz.planning.policy import Policy, Rules

if TYPE_CHECKING:
    from tamiz.api.passes import Note


def make_report(
    source: Mapping[str, Any],
    plan: Plan,
    policy: Policy | None,
    known: Calibration | None,
    slots: Sequence[Slot],
    notes: Iterable[Note],
    total_bytes: tuple[int, int],
    weight_bytes: Mapping[str, int],
    check: Mapping[str, Any],
    gate: Mapping[str, Any],
) -> dict[str, Any]:
    """Makes the report.

    Args:
        source: What the dense bundle was exported from: ``name`` and ``sha256``.
        plan: What was planned.
        policy: The policy that was followed.
        known: The calibration that was used.
        slots: What stands where.
        notes: What graph passes left as it was, and why.
        total_bytes: Bytes of all constants before and after.
        weight_bytes: Bytes of the dense weight by site id.
        check: Comparison with the dense model; see `tamiz.building.selfcheck.compare`.
        gate: The gate of the whole model; see `tamiz.building.whole_model`.
    """
    there = by_site(slots)
    sites = {
        p.site.id: _site(p.site, plan, there.get(p.site.id, []), weight_bytes)
        for p in plan.sites
        if p.site.weight is not None or p.choices
    }
    layers: dict[str, Any] = {}
    for site in (p.site for p in plan.sites if p.site.id in sites):
        if site.layer is not None and site.tensor is not None:
            layer = layers.setdefault(str(site.layer), {"tensors": {}})
            layer["tensors"][site.tensor] = _tensor(site, plan, there.get(site.id, []))
    weights = [sites[p.site.id] for p in plan.sites if p.site.weight is not None]
    return {
        "tamiz": __version__,
        "source": source["name"],
        "source_sha256": source["sha256"],
        "build": _choices(plan, policy, known),
        "totals": _totals(weights, total_bytes),
        "gate": dict(gate),
        "check": dict(check),
        "layers": layers,
        "sites": sites,
        "conflicts": [asdict(conflict) for conflict in plan.conflicts],
        "dropped": [{"site": site, "technique": name} for site, name in plan.dropped],
        "notes": [asdict(note) for note in notes],
    }


def _choices(plan: Plan, policy: Policy | None, known: Calibration | None) -> dict[str, Any]:
    return {
        "policy_file": policy.file if policy else None,
        "policy_hash": plan.policy,
        "policy_version": policy.value["version"] if policy else None,
        "policy": dict(policy.value) if policy else None,
        "techniques": describe(plan.choices),
        "calibration": known.digest if known else None,
        "calibration_tokens": known.count if known else None,
    }


def _totals(weights: Sequence[Mapping[str, Any]], total_bytes: tuple[int, int]) -> dict[str, int]:
    """Of the sites that have weights: how many there are, were replaced, lost nothing."""
    replaced = [s for s in weights if any(t["decision"]["applied"] for t in s["techniques"])]
    exact = [s for s in replaced if any(t["metrics"].get("exact") == 1 for t in s["techniques"])]
    return {
        "sites": len(weights),
        "replaced": len(replaced),
        "exact": len(exact),
        "bytes_before": total_bytes[0],
        "bytes_after": total_bytes[1],
    }


def without_seconds(report: Any) -> Any:
    """The report without what differs between two equal builds."""
    if isinstance(report, dict):
        return {key: without_seconds(v) for key, v in report.items() if key != "seconds"}
    if isinstance(report, list):
        return [without_seconds(value) for value in report]
    return report


def _site(
    site: Site, plan: Plan, slots: Sequence[Slot], weight_bytes: Mapping[str, int]
) -> dict[str, Any]:
    standing = [slot.accepted for slot in slots if slot.accepted is not None]
    owned = [a.stored for a in standing if a.choice.technique.cost is not None]
    added = [a.stored for a in standing if a.choice.technique.cost is None]
    return {
        "kind": site.kind.value,
        "node": site.node,
        "layer": site.layer,
        "tensor": site.tensor,
        "shape": [site.out_features, site.in_features],
        "bytes_before": weight_bytes[site.id],
        "bytes_after": (sum(owned) if owned else weight_bytes[site.id]) + sum(added),
        "techniques": [
            {
                "name": fitted.attempt.choice.technique.name,
                "config": _config(fitted.attempt),
                "config_from": _config_from(plan, site, fitted),
                "metrics": _metrics(fitted.attempt),
                "bits_per_weight": fitted.attempt.bits_per_weight,
                "decision": {"applied": applied, "reason": reason},
            }
            for slot in slots
            for fitted, applied, reason in slot.decisions()
        ],
        **({} if site.layer is not None and site.tensor else _tensor(site, plan, slots)),
    }


def _tensor(site: Site, plan: Plan, slots: Sequence[Slot]) -> dict[str, Any]:
    """What the policy says at one tensor, what was tried, and what was decided."""
    rules = plan.rules[site.id]
    decisions = [decision for slot in slots for decision in slot.decisions()]
    standing = [fitted.attempt for fitted, applied, _ in decisions if applied]
    shown = standing[0] if standing else decisions[0][0].attempt if decisions else None
    reasons = [f"{_name(fitted)}: {reason}" for fitted, _, reason in decisions]
    return {
        "resolved": {
            "enable": rules.enable,
            "strip": rules.strip,
            "policy": dict(rules.resolved),
            "policy_from": dict(rules.origins),
            "techniques": {a.choice.technique.name: _config(a) for a in standing},
        },
        "gating": _gating(rules, shown),
        "autotune": {
            "enabled": rules.tuning.enabled,
            "attempts": [_attempt(a) for fitted, _, _ in decisions for a in fitted.attempts],
        },
        "decision": {
            "emit": [a.choice.technique.name for a in standing],
            "strip_applied": bool(standing) and all(strips(plan, site, a.choice) for a in standing),
            "unsafe": [name for name in unsafe(slots).get(site.id, "").split(",") if name],
            "reason": "; ".join(reasons) or "no technique was chosen here",
        },
    }


def _name(fitted: Fitted) -> str:
    return fitted.attempt.choice.technique.name


def _gating(rules: Rules, shown: Attempt | None) -> dict[str, Any]:
    verdict = shown.verdict if shown else None
    judged = verdict.metric if verdict else None
    asked = rules.gating.metric.removeprefix("cos_").replace("xw", "x_w")
    return {
        **asdict(rules.gating),
        "judged": None if judged is None else f"cos_{judged}",
        "fallback": judged is not None and judged != asked,
        "mean": _finite(verdict.mean) if verdict else None,
        "p05": _finite(verdict.p05) if verdict else None,
        "pass": verdict is not None and verdict.refusal is None,
    }


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "technique": attempt.choice.technique.name,
        "config": _config(attempt),
        "metrics": _metrics(attempt),
        "bits_per_weight": attempt.bits_per_weight,
        "bytes": attempt.stored,
        "pass": attempt.verdict.refusal is None,
        "reason": attempt.verdict.refusal,
        "seconds": attempt.seconds,
    }


def _config(attempt: Attempt) -> dict[str, Any]:
    return attempt.choice.config.model_dump(mode="json")


def _config_from(plan: Plan, site: Site, fitted: Fitted) -> dict[str, str]:
    """What set each field: ``autotune``, a place in the policy, ``asked for``, or ``default``."""
    technique = fitted.choice.technique
    planned, tried = fitted.choice.config, fitted.attempt.choice.config
    placed = plan.rules[site.id].field_origins.get(technique.name, {})
    base = next((c.config for c in plan.choices if c.technique.name == technique.name), planned)
    asked = dict.fromkeys(base.model_fields_set, "asked for") | dict(placed)
    return {
        name: asked.get(name, "default")
        if getattr(planned, name) == getattr(tried, name)
        else "autotune"
        for name in technique.config.model_fields
    }


def _metrics(attempt: Attempt) -> dict[str, float | None]:
    return {name: _finite(value) for name, value in attempt.metrics.items()}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
