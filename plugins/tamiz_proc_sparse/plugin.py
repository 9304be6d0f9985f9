"""Declares proc-sparse."""

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
from tamiz_proc_sparse.config import ProcSparseConfig
from tamiz_proc_sparse.fit import cost, dequantize, fit, schedule
from tamiz_proc_sparse.rewrite import rewrite

PROC_SPARSE = Technique(
    name="proc-sparse",
    version="1",
    summary="Blocks of large weights are stored, small weights come from a hash, the rest is 0.",
    standing=Standing.EXPERIMENTAL,
    pays="No situation was found: slower than int4 and less exact on SmolLM2-135M.",
    config=ProcSparseConfig,
    site_kinds=frozenset({SiteKind.LINEAR}),
    claims=(Claim(Resource.WEIGHTS, Mode.EXCLUSIVE, block="block"),),
    provides=frozenset({"skippable-blocks", "structural-blocks"}),
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    autotune=Autotune("watermark", schedule),
    policy_keys={"fanout": "fanout", "block": "block", "watermark": "watermark"},
    metrics=(
        Metric("proc.bytes_read", "bytes", "Of records that calls read."),
        Metric("proc.bytes_stored", "bytes", "Of records that they would read without a mask."),
    ),
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [PROC_SPARSE]
