"""Puts ops that multiply with packed weights in place of dense products and lookups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamiz.api import Fit, GraphEditor, Site, SiteKind, input_of

if TYPE_CHECKING:
    import onnx_ir as ir


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product or lookup at `site`; a tied head and embedding share one constant."""
    graph = GraphEditor(model)
    linear = graph.linear(site)
    by_channel = not {"bits", "format"} & set(fit.attributes)
    if "format" in fit.attributes:
        form = str(fit.attributes["format"])
    else:
        form = "channels" if by_channel else f"int{fit.attributes['bits']}"
    if "scale_bits" in fit.attributes:
        form += "_in_units"
    weight = graph.constant(f"{site.weight}.{form}", fit.tensors["weight"])
    if site.kind is SiteKind.EMBEDDING:
        inputs = {"ids": linear.input, "weight": weight}
        return [graph.replace(linear, "BlockGather", inputs, fit.attributes)]
    if site.kind is SiteKind.EXPERTS:
        chosen = input_of(linear.node, "chosen")
        of_chosen = {"x": linear.input, "weight": weight, "chosen": chosen, "bias": linear.bias}
        attributes = {**fit.attributes, "experts": site.experts}
        return [graph.replace(linear, "ExpertMatMul", of_chosen, attributes)]
    op_type = "ChannelMatMul" if by_channel else "BlockMatMul"
    product = {"x": linear.input, "weight": weight, "bias": linear.bias}
    return [graph.replace(linear, op_type, product, fit.attributes)]
