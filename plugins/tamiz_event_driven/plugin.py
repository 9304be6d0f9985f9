"""Declares event-driven."""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.api import (
    Autotune,
    Claim,
    GraphPass,
    Metric,
    Mode,
    Resource,
    SiteKind,
    Standing,
    Technique,
    hookimpl,
)
from tamiz_event_driven import attention
from tamiz_event_driven.budget import ShareBudget
from tamiz_event_driven.config import EventDrivenConfig
from tamiz_event_driven.fit import effect, fit, schedule
from tamiz_event_driven.rewrite import rewrite

EVENT_DRIVEN = Technique(
    name="event-driven",
    version="1",
    summary="Decode steps compute the inputs that moved away from what is expected of them.",
    standing=Standing.EXPERIMENTAL,
    pays="No situation was found: SmolLM2-135M decodes at 0.86 to 0.93 × the speed of int4.",
    config=EventDrivenConfig,
    site_kinds=frozenset({SiteKind.LINEAR}),
    claims=(Claim(Resource.BUDGET, Mode.EXCLUSIVE, block=1),),
    requires=frozenset({"skippable-blocks"}),
    # Deltas of a layer are against steps that saw the keys that this one sees.
    excludes=frozenset({"windows", "chosen-keys"}),
    decode_only=True,
    policy_keys={"topk": "topk", "theta": "delta_theta"},
    autotune=Autotune(field="topk", schedule=schedule),
    metrics=(
        Metric("event.enabled", "steps", "Decode steps of a site that took deltas."),
        Metric("event.topk_kept", "inputs", "That they computed; the rest is stale."),
        Metric("event.channels", "inputs", "That they had."),
        Metric("event.quorum_hits", "steps", "That the budget cut short."),
        Metric("event.budget_ms_used", "ms", "That products with a budget took."),
        Metric("event.quality_gap", "fraction", "Sum of the gaps that were measured."),
        Metric("event.gap_checks", "checks", "How many were measured."),
        Metric("event.disabled", "sequences", "Sites that a gap switched off."),
    ),
    fit=fit,
    rewrite=rewrite,
    effect=effect,
)

EVENT_ATTENTION = Technique(
    name="event-attention",
    version="2",
    summary="Keys that weigh little keep the mean value that they had last.",
    standing=Standing.SITUATIONAL,
    pays="Contexts from 1,500 tokens: SmolLM2-135M decodes 1.3 × as fast, 2.3 × at 8,000.",
    config=attention.EventAttentionConfig,
    site_kinds=frozenset({SiteKind.ATTENTION}),
    claims=(Claim(Resource.KEYS, Mode.NARROWING, order=30), Claim(Resource.SKETCH, Mode.EXCLUSIVE)),
    provides=frozenset({"refine"}),  # what weighs is scored exactly
    excludes=frozenset({"windows"}),  # all that is left out, not what a window shows of it
    decode_only=True,
    metrics=(
        Metric("event.enabled", "steps", "Decode steps of a layer that attended to some keys."),
        Metric("event.topk_kept", "keys", "That they attended to exactly, by KV head."),
        Metric("event.channels", "keys", "That they had."),
        Metric("event.quality_gap", "fraction", "Sum of the gaps that were measured."),
        Metric("event.gap_checks", "checks", "How many were measured."),
        Metric("event.disabled", "sequences", "Layers that a gap switched off."),
    ),
    effect=attention.effect,
    fit=attention.fit,
    rewrite=attention.rewrite,
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The techniques of this plugin."""
    return [EVENT_DRIVEN, EVENT_ATTENTION]


@hookimpl
def tamiz_graph_passes() -> Sequence[type[GraphPass]]:
    """The one that shares the budget."""
    return [ShareBudget]
