"""Declares head-shortlist."""

from __future__ import annotations

from tamiz import api
from tamiz_head_shortlist.config import HeadShortlistConfig
from tamiz_head_shortlist.effect import effect, loss, rungs
from tamiz_head_shortlist.fit import fit
from tamiz_head_shortlist.rewrite import rewrite

HEAD_SHORTLIST = api.Technique(
    name="head-shortlist",
    former=("head",),
    version="2",
    summary="Computes exact logits of the likely tokens only, and estimates the others.",
    standing=api.Standing.SITUATIONAL,
    pays="Small models with a large vocabulary: SmolLM2-135M decodes 1.13 to 1.31 × as fast.",
    config=HeadShortlistConfig,
    site_kinds={api.SiteKind.HEAD},
    claims=(api.Claim(api.Resource.OUTPUTS),),
    requires={"packed-tiles"},
    decode_only=True,
    step_rows=lambda config: config.rows,
    calibrated=True,
    rungs=rungs,
    effect=effect,
    loss=loss,
    fit=fit,
    rewrite=rewrite,
    ops=("HeadShortlist.head",),
    switch="HeadShortlist.without",
)

tamiz_techniques = api.offer(HEAD_SHORTLIST)
