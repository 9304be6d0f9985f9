"""Declares seed-delta."""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.api import (
    Autotune,
    Claim,
    Metric,
    Mode,
    Resource,
    SiteKind,
    Standing,
    Technique,
    hookimpl,
)
from tamiz_seed_delta.config import SeedDeltaConfig
from tamiz_seed_delta.fit import cost, dequantize, fit, schedule
from tamiz_seed_delta.rewrite import rewrite

SEED_DELTA = Technique(
    name="seed-delta",
    version="1",
    summary="A base that a seed makes, and the largest part of the residual, stored.",
    standing=Standing.EXPERIMENTAL,
    pays="No situation was found where it is faster than int4; 3 bits a weight are smaller.",
    config=SeedDeltaConfig,
    site_kinds=frozenset({SiteKind.LINEAR, SiteKind.HEAD}),
    claims=(Claim(Resource.WEIGHTS, Mode.EXCLUSIVE, block="block"),),
    provides=frozenset({"skippable-blocks"}),
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    autotune=Autotune("k", schedule),
    policy_keys={"K": "k", "block": "block"},
    fallback=True,
    metrics=(
        Metric("seed_delta.bytes_read", "bytes", "Of what is stored that calls read."),
        Metric("seed_delta.fallbacks", "rows", "That were not finite and were computed dense."),
    ),
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [SEED_DELTA]
