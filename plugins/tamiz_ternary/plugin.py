"""Declares ternary."""

from __future__ import annotations

from tamiz import api
from tamiz_ternary.config import TernaryConfig
from tamiz_ternary.fit import cost, dequantize, fit
from tamiz_ternary.rewrite import rewrite

TERNARY = api.Technique(
    name="ternary",
    summary="Stores weights as −1, 0 and +1 in two planes of bits.",
    standing=api.Standing.EXPERIMENTAL,
    pays="Weights trained ternary: 1.7 × the speed of int4. No model was tried; others refused.",
    config=TernaryConfig,
    site_kinds={api.SiteKind.LINEAR},
    # 16 inputs share a vector of bits.
    claims=(api.Claim(api.Resource.WEIGHTS, block=16),),
    provides={"skippable-blocks", "packed-bits"},
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    ops=("TernaryMatMul",),
)

tamiz_techniques = api.offer(TERNARY)
