"""What this plugin gives the core: its graph passes and the search for sites."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from tamiz.api import GraphPass, Note, Site, hookimpl
from tamiz_passes.attention import RecogniseAttention
from tamiz_passes.clean_up import CleanUp
from tamiz_passes.fuse import FuseNodes
from tamiz_passes.key_means import KeyMeans
from tamiz_passes.logits_to_keep import LogitsToKeep
from tamiz_passes.residual import AbsorbResidual
from tamiz_passes.rms_norm import RecogniseRMSNorm
from tamiz_passes.sites import find_sites
from tamiz_passes.swiglu import RecogniseSwiGLU


@hookimpl
def tamiz_graph_passes() -> Sequence[type[GraphPass]]:
    """Passes of both phases."""
    return (
        CleanUp,
        RecogniseRMSNorm,
        RecogniseSwiGLU,
        RecogniseAttention,
        AbsorbResidual,
        LogitsToKeep,
        KeyMeans,
        FuseNodes,
    )


@hookimpl
def tamiz_find_sites(model: ir.Model) -> tuple[list[Site], list[Note]]:
    """Sites of any graph that has MatMul or Gemm nodes with constant weights."""
    return find_sites(model)
