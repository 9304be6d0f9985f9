"""The report of a build: what was decided at every site, why, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tamiz import __version__
from tamiz.gate import MAX_REL_L2, MIN_COS_MEAN_W
from tamiz.plan import Plan, describe
from tamiz.resolver import Choice
from tamiz.site import Site

if TYPE_CHECKING:
    from tamiz.graph import Note


@dataclass(frozen=True)
class Attempt:
    """One technique at one site.

    Attributes:
        choice: The technique with its configuration.
        applied: Whether it rewrote the site.
        reason: Why, in one sentence.
        metrics: Quality of the fit; empty where there was none.
        bits_per_weight: Of the fit; None where there was none.
    """

    choice: Choice
    applied: bool
    reason: str
    metrics: Mapping[str, float]
    bits_per_weight: float | None


@dataclass(frozen=True)
class Outcome:
    """What became of one site.

    Attributes:
        site: The site.
        attempts: Techniques in the order in which they were tried; none where none was chosen.
        bytes_before: Bytes of the dense weight.
        bytes_after: Bytes of what is read in its place.
    """

    site: Site
    attempts: tuple[Attempt, ...]
    bytes_before: int
    bytes_after: int


def make_report(
    source: str,
    choices: Iterable[Choice],
    plan: Plan,
    outcomes: Sequence[Outcome],
    notes: Iterable[Note],
    total_bytes: tuple[int, int],
    check: Mapping[str, Any],
) -> dict[str, Any]:
    """Makes the report; everything in it follows from the input, so equal builds have equal ones.

    Args:
        source: What the dense bundle was exported from.
        choices: What was chosen.
        plan: What was planned.
        outcomes: What became of every site.
        notes: What graph passes left as it was, and why.
        total_bytes: Bytes of all constants before and after.
        check: Comparison with the dense model; see `tamiz.selfcheck.compare`.
    """
    weights = [o for o in outcomes if o.site.weight is not None]
    replaced = [o for o in weights if any(attempt.applied for attempt in o.attempts)]
    return {
        "tamiz": __version__,
        "source": source,
        "build": {
            "policy_hash": plan.policy,
            "techniques": describe(choices),
            "gate": {"max_rel_l2": MAX_REL_L2, "min_cos_mean_w": MIN_COS_MEAN_W},
        },
        "totals": {
            "sites": len(weights),
            "replaced": len(replaced),
            "exact": sum(any(a.metrics.get("exact") == 1 for a in o.attempts) for o in replaced),
            "bytes_before": total_bytes[0],
            "bytes_after": total_bytes[1],
        },
        "check": dict(check),
        "sites": {outcome.site.id: _site(outcome) for outcome in outcomes},
        "conflicts": [asdict(conflict) for conflict in plan.conflicts],
        "dropped": [{"site": site, "technique": name} for site, name in plan.dropped],
        "notes": [asdict(note) for note in notes],
    }


def _site(outcome: Outcome) -> dict[str, Any]:
    site = outcome.site
    return {
        "kind": site.kind.value,
        "layer": site.layer,
        "tensor": site.tensor,
        "shape": [site.out_features, site.in_features],
        "bytes_before": outcome.bytes_before,
        "bytes_after": outcome.bytes_after,
        "techniques": [
            {
                "name": attempt.choice.technique.name,
                "config": attempt.choice.config.model_dump(mode="json"),
                "metrics": dict(attempt.metrics),
                "bits_per_weight": attempt.bits_per_weight,
                "decision": {"applied": attempt.applied, "reason": attempt.reason},
            }
            for attempt in outcome.attempts
        ],
    }
