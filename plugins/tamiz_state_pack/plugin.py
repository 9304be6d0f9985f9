"""Declares state-pack."""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.hookspecs import hookimpl
from tamiz.site import SiteKind
from tamiz.technique import Claim, Metric, Mode, Resource, Technique
from tamiz_state_pack import kv_filter
from tamiz_state_pack.kv_config import StatePackConfig

STATE_PACK = Technique(
    name="state-pack",
    version="1",
    summary="Decode steps attend to the keys whose packed bits score best, exactly.",
    config=StatePackConfig,
    site_kinds=frozenset({SiteKind.ATTENTION}),
    claims=(
        Claim(Resource.KEYS, Mode.NARROWING, order=20),  # after a window
        Claim(Resource.SKETCH, Mode.EXCLUSIVE),
    ),
    provides=frozenset({"refine"}),  # what is kept is scored exactly
    decode_only=True,
    metrics=(
        Metric("pack.enabled", "calls", "Decode steps of attention that keep sketches."),
        Metric("pack.active", "calls", "Those of them in which the filter chose the keys."),
        Metric("pack.attended", "keys", "Keys attended, by KV head."),
        Metric("pack.visible", "keys", "Keys there were to attend to, by KV head."),
        Metric("pack.density", "share", "Keys attended of those visible, summed over calls."),
        Metric("pack.mode", "planes", "Of the sketches, summed over calls: 1 binary, 2 ternary."),
        Metric("pack.popcnt", "calls", "Active ones with the query packed as the keys are."),
    ),
    effect=kv_filter.effect,
    fit=kv_filter.fit,
    rewrite=kv_filter.rewrite,
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The techniques of this plugin."""
    return [STATE_PACK]
