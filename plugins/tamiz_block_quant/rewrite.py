"""Puts BlockMatMul, ChannelMatMul and BlockGather where the dense products and lookups stood."""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import Fit, Site, SiteKind, add_initializer, find_linear, replace_linear


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product or lookup at `site`; a tied head and embedding share one constant."""
    linear = find_linear(model, site)
    by_channel = "bits" not in fit.attributes
    form = "channels" if by_channel else f"int{fit.attributes['bits']}"
    if "scale_bits" in fit.attributes:
        form += "_in_units"
    weight = add_initializer(model, f"{site.weight}.{form}", fit.tensors["weight"])
    inputs: list[ir.Value | None] = [linear.input, weight]
    if site.kind is SiteKind.EMBEDDING:
        op_type = "BlockGather"
    else:
        op_type = "ChannelMatMul" if by_channel else "BlockMatMul"
        inputs += [None, linear.bias]  # no mask
    return [replace_linear(model, linear, op_type, inputs, fit.attributes)]
