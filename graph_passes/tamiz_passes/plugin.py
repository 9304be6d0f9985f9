"""Graph passes and the search for sites, as the core loads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tamiz import api

if TYPE_CHECKING:
    import onnx_ir as ir


@api.hookimpl
def tamiz_graph_passes() -> Sequence[type[api.GraphPass]]:
    """Passes of both phases."""
    from tamiz_passes.attention import RecogniseAttention
    from tamiz_passes.clean_up import CleanUp
    from tamiz_passes.flat_linears import FlatLinears
    from tamiz_passes.fuse import FuseNodes
    from tamiz_passes.key_statistics import KeyStatistics
    from tamiz_passes.last_layer import LastLayer
    from tamiz_passes.layer_norm import RecogniseLayerNorm
    from tamiz_passes.logits_to_keep import LogitsToKeep
    from tamiz_passes.plain_ops import PlainOps
    from tamiz_passes.residual import AbsorbResidual
    from tamiz_passes.rms_norm import RecogniseRMSNorm
    from tamiz_passes.sequences import TakeSequences
    from tamiz_passes.short_conv import RecogniseShortConv
    from tamiz_passes.split_linears import SplitLinears
    from tamiz_passes.sums import SumResiduals
    from tamiz_passes.swiglu import RecogniseSwiGLU
    from tamiz_passes.text_attention import RecogniseTextAttention

    return (
        CleanUp,
        PlainOps,
        FlatLinears,
        SplitLinears,
        RecogniseRMSNorm,
        RecogniseSwiGLU,
        RecogniseAttention,
        AbsorbResidual,
        LogitsToKeep,
        KeyStatistics,
        RecogniseShortConv,
        TakeSequences,
        RecogniseTextAttention,
        RecogniseLayerNorm,
        SumResiduals,
        LastLayer,
        FuseNodes,
    )


@api.hookimpl
def tamiz_find_sites(model: ir.Model) -> tuple[list[api.Site], list[api.Note]]:
    """Sites of any graph that has MatMul or Gemm nodes with constant weights."""
    from tamiz_passes.sites import find_sites

    return find_sites(model)
