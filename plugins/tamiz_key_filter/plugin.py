"""Declares key-filter: keys and query become sparse sets of signed bits, their overlap decides.

A sparse distributed representation (Kanerva 1988) keeps of a rotated vector z the few elements
|z| > threshold mean|z|, with their signs. The overlap P.P + N.N - P.N - N.P of query and key, a
popcount (it counts set bits), ranks the keys; the best are attended to exactly.
"""

from typing import Any, ClassVar

from pydantic import Field

from tamiz import api


class KeyFilterConfig(api.TechniqueConfig):
    """How sparse keys are represented and how many are kept."""

    removed: ClassVar[dict[str, str]] = {"target": "attn_light"}

    threshold: float = Field(
        1.0,
        ge=0,
        le=4,
        description="Least size of an active element, in mean sizes of the key's elements. Higher "
        "makes keys sparser.",
    )
    keep: int = Field(
        512,
        ge=1,
        description="Keys kept for their overlap with the query, in tokens.",
    )


def fit(site: api.Site, weight: Any, statistics: Any, config: KeyFilterConfig) -> api.Fit:
    """Turns the configuration into attributes of the op; keys and query have the same bits."""
    bits = {"ternary": 1, "epsilon": config.threshold, "query_bits": 2}
    return api.Fit(attributes={"keep": config.keep, **bits})


def effect(site: api.Site, config: KeyFilterConfig, cost: api.Cost, keys: int) -> api.Cost:
    """A step reads two planes of bits of every key, and the keys and values that are kept."""
    return api.filtered_cost(cost, site.head_size, keys, config.keep, planes=2)


KEY_FILTER = api.Technique.of(
    api.Identity(
        name="key-filter",
        summary="Attends to the keys whose sparse bits overlap most with those of the query.",
        former=("sdr",),
        config=KeyFilterConfig,
        standing=api.Standing.SITUATIONAL,
        pays="Contexts of thousands of tokens; its speed was not measured, see state-pack.",
    ),
    api.Where(site_kinds={api.SiteKind.ATTENTION}, decode_only=True),
    api.Claims(
        claims=(
            api.Claim(api.Resource.KEYS, api.Mode.NARROWING, order=20),
            api.Claim(api.Resource.SKETCH),
        ),
        provides={"chosen-keys", "refine"},
    ),
    api.Offline(fit=fit),
    api.Graph(
        rewrite=api.rewrite_filter, ops=("Attention.pack",), switch="Attention.without_choice"
    ),
    api.Planning(effect=effect),
)
tamiz_techniques = api.offer(KEY_FILTER)
