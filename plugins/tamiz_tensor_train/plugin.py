"""Declares tensor-train."""

from __future__ import annotations

from tamiz import api
from tamiz_tensor_train.config import TensorTrainConfig
from tamiz_tensor_train.fit import cost, dequantize, fit, schedule
from tamiz_tensor_train.rewrite import rewrite

TENSOR_TRAIN = api.Technique.of(
    api.Identity(
        name="tensor-train",
        summary="Stores weights as tensor trains (TT), products of small cores.",
        former=("tt",),
        config=TensorTrainConfig,
        standing=api.Standing.EXPERIMENTAL,
        pays="Layers trained as trains of rank 8 or less (none was tried); others are refused.",
    ),
    api.Where(site_kinds={api.SiteKind.LINEAR}),
    # Every core needs all of its input, so nothing can be skipped.
    api.Claims(claims=(api.Claim(api.Resource.WEIGHTS),), provides={"whole-layer-only"}),
    api.Offline(fit=fit, dequantize=dequantize, autotune=api.Autotune("tolerance", schedule)),
    api.Graph(rewrite=rewrite),
    api.Planning(cost=cost),
)

tamiz_techniques = api.offer(TENSOR_TRAIN)
