"""Declares ternary."""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.api import PACKED_BYTES, Claim, Mode, Resource, SiteKind, Standing, Technique, hookimpl
from tamiz_ternary.config import TernaryConfig
from tamiz_ternary.fit import cost, dequantize, fit
from tamiz_ternary.rewrite import rewrite

TERNARY = Technique(
    name="ternary",
    version="1",
    summary="Weights of the levels −1, 0 and +1 in two planes of bits.",
    standing=Standing.EXPERIMENTAL,
    pays="Models trained with ternary weights, of which none was tried; others are refused.",
    config=TernaryConfig,
    site_kinds=frozenset({SiteKind.LINEAR}),
    # 16 inputs share a vector of bits.
    claims=(Claim(Resource.WEIGHTS, Mode.EXCLUSIVE, block=16),),
    provides=frozenset({"skippable-blocks", "packed-bits"}),
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    metrics=PACKED_BYTES,
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [TERNARY]
