"""Declares seed-delta."""

from __future__ import annotations

from tamiz import api
from tamiz_seed_delta.config import SeedDeltaConfig, takes
from tamiz_seed_delta.fit import cost, dequantize, fit, schedule

SEED_DELTA = api.Technique.of(
    api.Identity(
        name="seed-delta",
        summary="Makes weights from a seed and stores the largest part of the residual.",
        config=SeedDeltaConfig,
        policy_keys={"K": "k", "block": "block"},
        standing=api.Standing.EXPERIMENTAL,
        pays="No situation was found where it is faster than int4; 3 bits a weight are smaller.",
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR, api.SiteKind.HEAD}, takes=takes),
    api.Claims(
        claims=(api.Claim(api.Resource.WEIGHTS, block="block"),), provides={"skippable-blocks"}
    ),
    api.Offline(fit=fit, dequantize=dequantize, autotune=api.Autotune("k", schedule)),
    api.Graph(
        rewrite=api.replace_product("SeedDeltaMatMul"),
        ops=("SeedDeltaMatMul",),
        fallback=True,
        switch="SeedDeltaMatMul.without",
    ),
    api.Planning(cost=cost),
)

tamiz_techniques = api.offer(SEED_DELTA)
