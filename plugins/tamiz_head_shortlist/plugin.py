"""Declares head-shortlist."""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.api import Claim, Metric, Mode, Resource, SiteKind, Standing, Technique, hookimpl
from tamiz_head_shortlist.config import HeadShortlistConfig
from tamiz_head_shortlist.effect import effect
from tamiz_head_shortlist.fit import fit
from tamiz_head_shortlist.rewrite import rewrite

HEAD_SHORTLIST = Technique(
    name="head-shortlist",
    version="2",
    summary="Exact logits of the tokens that a small sketch of the head favours, estimates of the "
    "others.",
    standing=Standing.SITUATIONAL,
    pays="Small models with a large vocabulary: SmolLM2-135M decodes 1.13 to 1.31 × as fast.",
    config=HeadShortlistConfig,
    site_kinds=frozenset({SiteKind.HEAD}),
    claims=(Claim(Resource.OUTPUTS, Mode.EXCLUSIVE),),
    requires=frozenset({"packed-tiles"}),
    decode_only=True,
    calibrated=True,
    effect=effect,
    fit=fit,
    rewrite=rewrite,
    metrics=(Metric("head.shortlisted", "rows", "Positions that took the shortlist."),),
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [HEAD_SHORTLIST]
