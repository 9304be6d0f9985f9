"""Declares event-driven."""

from __future__ import annotations

from tamiz import api
from tamiz_event_driven import attention
from tamiz_event_driven.config import EventDrivenConfig
from tamiz_event_driven.fit import effect, fit, schedule
from tamiz_event_driven.rewrite import rewrite

EVENT_DRIVEN = api.Technique.of(
    api.Identity(
        name="event-driven",
        summary="Computes only the inputs that changed since the step before.",
        former=("event",),
        version="2",
        config=EventDrivenConfig,
        policy_keys={"topk": "topk", "theta": "delta_theta"},
        standing=api.Standing.EXPERIMENTAL,
        pays="Inputs that hardly change between steps; SmolLM2-135M decodes at 0.86 to 0.93 ×.",
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR}, decode_only=True),
    api.Claims(
        claims=(api.Claim(api.Resource.BUDGET, block="block"),),
        requires={"skippable-blocks"},
        # Deltas of a layer are against steps that saw the keys that this one sees.
        excludes={"windows", "chosen-keys"},
    ),
    api.Offline(fit=fit, autotune=api.Autotune(field="topk", schedule=schedule)),
    api.Graph(rewrite=rewrite, ops=("EventSelect", "EventSum"), switch="EventSelect.without"),
    api.Planning(effect=effect),
)

EVENT_ATTENTION = api.Technique.of(
    api.Identity(
        name="event-attention",
        summary="Attends to the keys that matter; the others keep their last mean value.",
        version="2",
        config=attention.EventAttentionConfig,
        standing=api.Standing.SITUATIONAL,
        pays="Contexts from 1,500 tokens: SmolLM2-135M decodes 1.3 × as fast, 2.3 × at 8,000.",
    ),
    api.Where(site_kinds={api.SiteKind.ATTENTION}, decode_only=True),
    api.Claims(
        claims=(
            api.Claim(api.Resource.KEYS, api.Mode.NARROWING, order=30),
            api.Claim(api.Resource.SKETCH),
        ),
        provides={"refine"},
        excludes={"windows"},
    ),
    api.Offline(fit=attention.fit),
    api.Graph(
        rewrite=attention.rewrite, ops=("Attention.event",), switch="Attention.without_choice"
    ),
    api.Planning(effect=attention.effect),
)

tamiz_techniques = api.offer(EVENT_DRIVEN, EVENT_ATTENTION)


@api.hookimpl
def tamiz_graph_passes() -> list[type[api.GraphPass]]:
    """Shares the budget."""
    from tamiz_event_driven.budget import ShareBudget

    return [ShareBudget]
