"""Declares kwta."""

from __future__ import annotations

from tamiz import api
from tamiz_kwta.config import KwtaConfig
from tamiz_kwta.fit import effect, fit, rungs
from tamiz_kwta.rewrite import rewrite

KWTA = api.Technique(
    name="kwta",
    version="4",
    summary="Reads only the weights of each token's strongest inputs (k winners take all).",
    standing=api.Standing.SITUATIONAL,
    pays="Layers with thousands of inputs; SmolLM2-135M gains nothing.",
    config=KwtaConfig,
    site_kinds={api.SiteKind.LINEAR},
    tensors={"attn_q", "attn_k", "attn_v", "attn_o", "ffn_gate", "ffn_up", "ffn_down"},
    claims=(api.Claim(api.Resource.CANDIDATES, api.Mode.NARROWING, order=20, block="block"),),
    requires={"skippable-blocks"},
    ops=("KwtaMask",),
    switch="KwtaMask.without",
    shown={"kwta.temp": "temp"},
    calibrated=True,
    strength=api.Strength("strength", fixed=("k", "k_abs"), start=1.0, loss="loss"),
    rungs=rungs,
    effect=effect,
    fit=fit,
    rewrite=rewrite,
)

tamiz_techniques = api.offer(KWTA)
