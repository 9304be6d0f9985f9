"""Declares channel-scale and puts it into graphs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from tamiz.api import (
    Claim,
    Fit,
    Metric,
    Mode,
    Resource,
    Site,
    SiteKind,
    Technique,
    add_initializer,
    find_linear,
    hookimpl,
    replace_linear,
)
from tamiz_channel_scale.fit import ChannelScaleConfig, cost, dequantize, fit


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces W x by an ONNX Mul, x / s, and tamiz's BlockMatMul."""
    linear = find_linear(model, site)
    inverse = add_initializer(model, f"{site.id}.inverse", fit.tensors["inverse"])
    weight = add_initializer(model, f"{site.id}.scaled_int4", fit.tensors["weight"])
    scaled = ir.node("Mul", [linear.input, inverse], name=f"{site.node}.scale")
    scaled.outputs[0].name = f"{site.node}.scaled"
    scaled.outputs[0].type, scaled.outputs[0].shape = linear.input.type, linear.input.shape
    model.graph.insert_before(linear.node, scaled)
    inputs = [scaled.outputs[0], weight, None, linear.bias]
    return [scaled, replace_linear(model, linear, "BlockMatMul", inputs, fit.attributes)]


CHANNEL_SCALE = Technique(
    name="channel-scale",
    version="1",
    summary="int4 weights whose input channels are scaled by their size before rounding (AWQ).",
    config=ChannelScaleConfig,
    site_kinds=frozenset({SiteKind.LINEAR}),
    claims=(Claim(Resource.WEIGHTS, Mode.EXCLUSIVE),),
    fit=fit,
    rewrite=rewrite,
    cost=cost,
    dequantize=dequantize,
    policy_keys={"alpha": "alpha"},
    metrics=(
        Metric("matmul.bytes_read", "bytes", "Of packed weights that calls read."),
        Metric("matmul.bytes_dense", "bytes", "The same, as nothing is skipped."),
    ),
)


@hookimpl
def tamiz_techniques() -> Sequence[Technique]:
    """The one technique of this plugin."""
    return [CHANNEL_SCALE]
