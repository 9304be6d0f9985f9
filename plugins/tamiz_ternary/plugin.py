"""Declares ternary."""

from __future__ import annotations

from tamiz import api
from tamiz_ternary.config import TernaryConfig
from tamiz_ternary.fit import cost, dequantize, fit

TERNARY = api.Technique.of(
    api.Identity(
        name="ternary",
        summary="Stores weights as −1, 0 and +1 in two planes of bits.",
        config=TernaryConfig,
        standing=api.Standing.EXPERIMENTAL,
        pays="Weights trained ternary: 1.7 × the speed of int4 (no model was tried).",
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR}),
    api.Claims(
        # 16 inputs share a vector of bits.
        claims=(api.Claim(api.Resource.WEIGHTS, block=16),),
        provides={"skippable-blocks", "packed-bits"},
    ),
    api.Offline(fit=fit, dequantize=dequantize),
    api.Graph(rewrite=api.replace_product("TernaryMatMul"), ops=("TernaryMatMul",)),
    api.Planning(cost=cost),
)

tamiz_techniques = api.offer(TERNARY)
