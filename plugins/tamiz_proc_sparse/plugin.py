"""Declares proc-sparse."""

from __future__ import annotations

from tamiz import api
from tamiz_proc_sparse.config import ProcSparseConfig
from tamiz_proc_sparse.fit import cost, dequantize, fit, schedule
from tamiz_proc_sparse.rewrite import rewrite

PROC_SPARSE = api.Technique(
    name="proc-sparse",
    former=("proc",),
    summary="Stores large weights of a few blocks, makes small ones from a hash; the rest is 0.",
    standing=api.Standing.EXPERIMENTAL,
    pays="Weights with half of their blocks 0: 1.25 × the speed of int4. SmolLM2-135M has none.",
    config=ProcSparseConfig,
    site_kinds={api.SiteKind.LINEAR},
    claims=(api.Claim(api.Resource.WEIGHTS, block="block"),),
    provides={"skippable-blocks", "structural-blocks"},
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    autotune=api.Autotune("watermark", schedule),
    policy_keys={"fanout": "fanout", "block": "block", "watermark": "watermark"},
    ops=("ProcSparseMatMul",),
    shown={"proc.fanout": "fanout"},
)

tamiz_techniques = api.offer(PROC_SPARSE)
