"""Declares head-shortlist."""

from __future__ import annotations

from tamiz import api
from tamiz_head_shortlist.config import HeadShortlistConfig
from tamiz_head_shortlist.effect import effect, loss, options
from tamiz_head_shortlist.fit import fit
from tamiz_head_shortlist.rewrite import rewrite

HEAD_SHORTLIST = api.Technique.of(
    api.Identity(
        name="head-shortlist",
        summary="Computes exact logits of the likely tokens only, and estimates the others.",
        former=("head",),
        version="2",
        config=HeadShortlistConfig,
        standing=api.Standing.SITUATIONAL,
        pays="Small models with a large vocabulary: SmolLM2-135M decodes 1.13 to 1.31 × as fast.",
    ),
    api.Where(
        site_kinds={api.SiteKind.HEAD}, decode_only=True, step_rows=lambda config: config.rows
    ),
    api.Claims(claims=(api.Claim(api.Resource.OUTPUTS),), requires={"packed-tiles"}),
    api.Offline(fit=fit, calibrated=True, options=options),
    api.Graph(rewrite=rewrite, ops=("HeadShortlist.head",), switch="HeadShortlist.without"),
    api.Planning(effect=effect, loss=loss),
)

tamiz_techniques = api.offer(HEAD_SHORTLIST)
