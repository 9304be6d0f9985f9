"""Declares kwta."""

from __future__ import annotations

from tamiz import api
from tamiz_kwta.config import KwtaConfig
from tamiz_kwta.fit import effect, fit, options
from tamiz_kwta.rewrite import rewrite

KWTA = api.Technique.of(
    api.Identity(
        name="kwta",
        summary="Reads only the weights of each token's strongest inputs (k winners take all).",
        version="4",
        config=KwtaConfig,
        standing=api.Standing.SITUATIONAL,
        pays="Layers with thousands of inputs; SmolLM2-135M gains nothing.",
    ),
    api.Where(
        site_kinds={api.SiteKind.LINEAR},
        tensors={"attn_q", "attn_k", "attn_v", "attn_o", "ffn_gate", "ffn_up", "ffn_down"},
    ),
    api.Claims(
        claims=(api.Claim(api.Resource.CANDIDATES, api.Mode.NARROWING, order=20, block="block"),),
        requires={"skippable-blocks"},
    ),
    api.Offline(
        fit=fit,
        calibrated=True,
        strength=api.Strength("strength", fixed=("k", "k_abs"), start=1.0, loss="loss"),
        options=options,
    ),
    api.Graph(
        rewrite=rewrite, ops=("KwtaMask",), switch="KwtaMask.without", shown={"kwta.temp": "temp"}
    ),
    api.Planning(effect=effect),
)

tamiz_techniques = api.offer(KWTA)
