"""Declares tt."""

from __future__ import annotations

from collections.abc import Sequence

from tamiz.api import Autotune, Claim, Mode, Resource, SiteKind, Standing, Technique, hookimpl
from tamiz_tensor_train.config import TensorTrainConfig
from tamiz_tensor_train.fit import cost, dequantize, fit, schedule
from tamiz_tensor_train.rewrite import rewrite

TENSOR_TRAIN = Technique(
    name="tt",
    version="1",
    summary="Weights as tensor trains: products of small cores.",
    standing=Standing.EXPERIMENTAL,
    pays="Layers trained as tensor trains, of which none was tried; others are refused.",
    config=TensorTrainConfig,
    site_kinds=frozenset({SiteKind.LINEAR}),
    claims=(Claim(Resource.WEIGHTS, Mode.EXCLUSIVE),),
    # Every core needs all of its input, so nothing can be skipped.
    provides=frozenset({"whole-layer-only"}),
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    autotune=Autotune("tolerance", schedule),
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [TENSOR_TRAIN]
