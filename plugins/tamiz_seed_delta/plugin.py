"""Declares seed-delta."""

from __future__ import annotations

from tamiz import api
from tamiz_seed_delta.config import SeedDeltaConfig, takes
from tamiz_seed_delta.fit import cost, dequantize, fit, schedule
from tamiz_seed_delta.rewrite import rewrite

SEED_DELTA = api.Technique(
    name="seed-delta",
    summary="Makes weights from a seed and stores the largest part of the residual.",
    standing=api.Standing.EXPERIMENTAL,
    pays="No situation was found where it is faster than int4; 3 bits a weight are smaller.",
    config=SeedDeltaConfig,
    site_kinds={api.SiteKind.LINEAR, api.SiteKind.HEAD},
    takes=takes,
    claims=(api.Claim(api.Resource.WEIGHTS, block="block"),),
    provides={"skippable-blocks"},
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    autotune=api.Autotune("k", schedule),
    policy_keys={"K": "k", "block": "block"},
    fallback=True,
    ops=("SeedDeltaMatMul",),
    switch="SeedDeltaMatMul.without",
)

tamiz_techniques = api.offer(SEED_DELTA)
