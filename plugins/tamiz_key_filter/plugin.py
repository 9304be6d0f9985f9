"""Declares key-filter: keys and query become sparse sets of signed bits, their overlap decides.

A sparse distributed representation (Kanerva 1988) keeps of a rotated vector z the few elements
|z| > threshold mean|z|, with their signs. The overlap P.P + N.N - P.N - N.P of query and key, a
popcount, ranks the keys; the best are attended to exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from tamiz.api import (
    Claim,
    Cost,
    Fit,
    Mode,
    Resource,
    Site,
    SiteKind,
    Standing,
    Technique,
    TechniqueConfig,
    filtered,
    hookimpl,
    rewrite_filter,
)


class KeyFilterConfig(TechniqueConfig):
    """How sparse keys are represented and how many are kept."""

    target: Literal["attn_light"] = Field(
        "attn_light",
        description="What is filtered: the keys of attention in decode steps.",
        json_schema_extra={"flag": "--sdr-target"},
    )
    threshold: float = Field(
        1.0,
        ge=0,
        le=4,
        description="Elements above threshold times the mean size are active.",
        json_schema_extra={"flag": "--sdr-threshold"},
    )
    keep: int = Field(
        512,
        ge=1,
        description="Keys kept for their overlap, in tokens.",
        json_schema_extra={"flag": "--sdr-keep"},
    )


def fit(site: Site, weight: Any, statistics: Any, config: KeyFilterConfig) -> Fit:
    """Turns the configuration into attributes of the op."""
    attributes = {
        "keep": config.keep,
        "ternary": 1,
        "epsilon": config.threshold,
        "query_bits": 2,  # the query is represented as the keys are
    }
    return Fit({}, attributes, {}, 0.0)


def effect(site: Site, config: KeyFilterConfig, cost: Cost, keys: int) -> Cost:
    """A step reads two planes of bits of every key, and the keys and values that it keeps."""
    return filtered(cost, site.head_size, keys, config.keep, planes=2)


KEY_FILTER = Technique(
    name="key-filter",
    version="1",
    summary="Decode steps attend to the keys that overlap most as sparse sets of bits.",
    standing=Standing.SITUATIONAL,
    pays="Contexts of thousands of tokens; its speed was not measured, see state-pack.",
    config=KeyFilterConfig,
    site_kinds=frozenset({SiteKind.ATTENTION}),
    claims=(
        Claim(Resource.KEYS, Mode.NARROWING, order=20),
        Claim(Resource.SKETCH, Mode.EXCLUSIVE),
    ),
    provides=frozenset({"chosen-keys", "refine"}),
    decode_only=True,
    effect=effect,
    fit=fit,
    rewrite=rewrite_filter,
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [KEY_FILTER]
