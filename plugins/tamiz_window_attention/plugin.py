"""Declares win-attn: a query sees the last tokens, itself included, and the first few.

The first tokens stay because softmax needs somewhere to put what it does not want elsewhere
(Xiao et al. 2023, "attention sinks").
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
from pydantic import Field

from tamiz.api import (
    Claim,
    Cost,
    Fit,
    FitError,
    Mode,
    Resource,
    Site,
    SiteKind,
    Standing,
    Technique,
    TechniqueConfig,
    find_attention,
    hookimpl,
    set_attributes,
)


class WindowConfig(TechniqueConfig):
    """Which keys a query sees."""

    tokens: int = Field(1024, ge=1, description="Window of the last keys, in tokens.")
    sinks: int = Field(4, ge=0, description="First keys that are always seen, in tokens.")


def fit(site: Site, weight: Any, statistics: Any, config: WindowConfig) -> Fit:
    """Turns the configuration into attributes of the op."""
    return Fit({}, {"window": config.tokens, "sinks": config.sinks}, {}, 0.0)


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Sets the window of the attention at `site`; the node stays.

    Raises:
        FitError: The attention was not recognised, or the model itself has a window there.
    """
    node = find_attention(model, site)
    own = node.attributes.get("window")
    if own is not None and 0 < own.as_int() <= int(fit.attributes["window"]):
        raise FitError(f"the model's own window of {own.as_int()} keys is not longer")
    set_attributes(node, fit.attributes)
    return [node]


def effect(site: Site, config: WindowConfig, cost: Cost, keys: int) -> Cost:
    """A step reads the keys and values that the window leaves."""
    share = min(1.0, (config.tokens + config.sinks) / max(1, keys))
    return replace(cost, read=round(cost.read * share))


WINDOW_ATTENTION = Technique(
    name="win-attn",
    version="1",
    summary="Attention sees a window of the last tokens and the first few.",
    standing=Standing.SITUATIONAL,
    pays="Models trained with a window, or before a filter of keys such as state-pack.",
    config=WindowConfig,
    site_kinds=frozenset({SiteKind.ATTENTION}),
    claims=(Claim(Resource.KEYS, Mode.NARROWING, order=10),),
    provides=frozenset({"windows", "refine"}),
    effect=effect,
    fit=fit,
    rewrite=rewrite,
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [WINDOW_ATTENTION]
