"""Declares block-quant."""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.api import (
    PACKED_BYTES,
    Claim,
    GraphPass,
    Mode,
    Resource,
    SiteKind,
    Standing,
    Technique,
    hookimpl,
)
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.fit import cost, dequantize, fit
from tamiz_block_quant.rewrite import rewrite
from tamiz_block_quant.unmasked import PackUnmasked

BLOCK_QUANT = Technique(
    name="block-quant",
    version="1",
    summary="Weights as int4 or int8 in groups of 32 inputs with fp16 scales.",
    standing=Standing.RECOMMENDED,
    pays="Nearly every model: smaller and faster; Q4_1 and Q8_0 sources lose nothing.",
    config=BlockQuantConfig,
    site_kinds=frozenset({SiteKind.LINEAR, SiteKind.HEAD, SiteKind.EMBEDDING}),
    # Packed by channel, single inputs are skipped, so any partition of the input will do.
    claims=(Claim(Resource.WEIGHTS, Mode.EXCLUSIVE, block=1),),
    provides=frozenset({"skippable-blocks", "packed-tiles"}),
    default=True,
    partition="mask_block",
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    metrics=PACKED_BYTES,
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [BLOCK_QUANT]


@hookimpl
def tamiz_graph_passes() -> Sequence[type[GraphPass]]:
    """What becomes of weights whose mask was refused."""
    return [PackUnmasked]
