"""Declares kwta."""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.api import Claim, Dial, Metric, Mode, Resource, SiteKind, Standing, Technique, hookimpl
from tamiz_kwta.config import KwtaConfig
from tamiz_kwta.fit import effect, fit
from tamiz_kwta.rewrite import rewrite

KWTA = Technique(
    name="kwta",
    version="3",
    summary="Each token reads the weights of its strongest inputs only.",
    standing=Standing.SITUATIONAL,
    pays="Layers with thousands of inputs; SmolLM2-135M gains nothing.",
    config=KwtaConfig,
    site_kinds=frozenset({SiteKind.LINEAR}),
    tensors=frozenset({"attn_q", "attn_k", "attn_v", "attn_o", "ffn_gate", "ffn_up", "ffn_down"}),
    claims=(Claim(Resource.CANDIDATES, Mode.NARROWING, order=20, block="block"),),
    requires=frozenset({"skippable-blocks"}),
    metrics=(
        Metric("kwta.kept", "blocks", "Blocks that won; over kwta.blocks: the keep ratio."),
        Metric("kwta.blocks", "blocks", "Blocks that there were."),
        Metric("kwta.duty_hits", "tokens", "Tokens that were gated."),
    ),
    calibrated=True,
    dial=Dial("strength", fixed=("k", "k_abs"), start=1.0, loss="loss"),
    effect=effect,
    fit=fit,
    rewrite=rewrite,
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [KWTA]
