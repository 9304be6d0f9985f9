"""Declares block-quant."""

from __future__ import annotations

from tamiz import api
from tamiz_block_quant.config import BlockQuantConfig
from tamiz_block_quant.fit import (
    cost,
    dequantize,
    fit,
    granularities,
    options,
    shares_badly,
    takes,
)
from tamiz_block_quant.rewrite import rewrite

BLOCK_QUANT = api.Technique.of(
    api.Identity(
        name="block-quant",
        summary="Stores weights as int4 or int8 in groups of 32 inputs, each with a scale.",
        config=BlockQuantConfig,
        default=True,
        standing=api.Standing.RECOMMENDED,
        pays="Nearly every model: smaller and faster; Q4_1 and Q8_0 sources lose nothing.",
    ),
    api.Where(
        site_kinds={
            api.SiteKind.LINEAR,
            api.SiteKind.HEAD,
            api.SiteKind.EMBEDDING,
            api.SiteKind.EXPERTS,
        },
        takes=takes,
    ),
    api.Claims(
        # Packed by channel, single inputs are skipped, so any partition of the input will do.
        claims=(api.Claim(api.Resource.WEIGHTS, block=1),),
        provides={"skippable-blocks", "packed-tiles"},
    ),
    api.Offline(
        fit=fit,
        dequantize=dequantize,
        autotune=api.Autotune(None, granularities, shares_badly),
        partition="mask_block",
        options=options,
        masked={"bits": 4, "scale_bits": 8},
    ),
    api.Graph(rewrite=rewrite, ops=("BlockMatMul", "ChannelMatMul", "ExpertMatMul")),
    api.Planning(cost=cost),
)

tamiz_techniques = api.offer(BLOCK_QUANT)


@api.hookimpl
def tamiz_graph_passes() -> list[type[api.GraphPass]]:
    """Packs weights whose mask was refused."""
    from tamiz_block_quant.unmasked import PackUnmasked

    return [PackUnmasked]
