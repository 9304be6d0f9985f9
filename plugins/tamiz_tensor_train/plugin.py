"""Declares tensor-train."""

from __future__ import annotations

from tamiz import api
from tamiz_tensor_train.config import TensorTrainConfig
from tamiz_tensor_train.fit import cost, dequantize, fit, schedule
from tamiz_tensor_train.rewrite import rewrite

TENSOR_TRAIN = api.Technique(
    name="tensor-train",
    former=("tt",),
    summary="Stores weights as tensor trains (TT), products of small cores.",
    standing=api.Standing.EXPERIMENTAL,
    pays="Layers trained as trains of rank 8 or less, of which none was tried; others are refused.",
    config=TensorTrainConfig,
    site_kinds={api.SiteKind.LINEAR},
    claims=(api.Claim(api.Resource.WEIGHTS),),
    # Every core needs all of its input, so nothing can be skipped.
    provides={"whole-layer-only"},
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    autotune=api.Autotune("tolerance", schedule),
)

tamiz_techniques = api.offer(TENSOR_TRAIN)
