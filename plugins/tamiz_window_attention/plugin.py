"""Declares window-attention: a query sees the last tokens, itself included, and the first few.

Softmax puts on the first tokens what it needs nowhere else: "attention sinks" (Xiao et al. 2023).
"""

from dataclasses import replace
from typing import Any

from pydantic import Field

from tamiz import api


class WindowConfig(api.TechniqueConfig):
    """Which keys a query sees."""

    tokens: int = Field(1024, ge=1, description="Last keys that a query sees, in tokens.")
    sinks: int = Field(4, ge=0, description="First keys that a query always sees, in tokens.")


def fit(site: api.Site, weight: Any, statistics: Any, config: WindowConfig) -> api.Fit:
    """Turns the configuration into attributes of the op."""
    return api.Fit(attributes={"window": config.tokens, "sinks": config.sinks})


def effect(site: api.Site, config: WindowConfig, cost: api.Cost, keys: int) -> api.Cost:
    """A step reads the keys and values in the window."""
    share = min(1.0, (config.tokens + config.sinks) / max(1, keys))
    return replace(cost, read=round(cost.read * share))


WINDOW_ATTENTION = api.Technique.of(
    api.Identity(
        name="window-attention",
        summary="Attends to the last tokens and the first few only.",
        former=("win-attn",),
        config=WindowConfig,
        standing=api.Standing.SITUATIONAL,
        pays="Models trained with a window, or before a filter of keys such as state-pack.",
    ),
    api.Where(site_kinds={api.SiteKind.ATTENTION}),
    api.Claims(
        claims=(api.Claim(api.Resource.KEYS, api.Mode.NARROWING, order=10),),
        provides={"windows", "refine"},
    ),
    api.Offline(fit=fit),
    api.Graph(rewrite=api.set_attention, switch="Attention.without_window"),
    api.Planning(effect=effect),
)
tamiz_techniques = api.offer(WINDOW_ATTENTION)
