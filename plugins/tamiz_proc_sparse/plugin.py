"""Declares proc-sparse."""

from __future__ import annotations

from tamiz import api
from tamiz_proc_sparse.config import ProcSparseConfig
from tamiz_proc_sparse.fit import cost, dequantize, fit, schedule

PROC_SPARSE = api.Technique.of(
    api.Identity(
        name="proc-sparse",
        summary="Stores large weights of a few blocks, makes small ones by a hash; the rest is 0.",
        former=("proc",),
        config=ProcSparseConfig,
        policy_keys={"fanout": "fanout", "block": "block", "watermark": "watermark"},
        standing=api.Standing.EXPERIMENTAL,
        pays="Weights with half of their blocks 0: 1.25 × the speed of int4; SmolLM2 has none.",
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR}),
    api.Claims(
        claims=(api.Claim(api.Resource.WEIGHTS, block="block"),),
        provides={"skippable-blocks", "structural-blocks"},
    ),
    api.Offline(fit=fit, dequantize=dequantize, autotune=api.Autotune("watermark", schedule)),
    api.Graph(
        rewrite=api.replace_product("ProcSparseMatMul"),
        ops=("ProcSparseMatMul",),
        shown={"proc.fanout": "fanout"},
    ),
    api.Planning(cost=cost),
)

tamiz_techniques = api.offer(PROC_SPARSE)
