"""Puts SeedDeltaMatMul in place of dense products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamiz.api import Fit, GraphEditor, Site

if TYPE_CHECKING:
    import onnx_ir as ir


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product at `site`; where dense is not stripped, it stays as the fallback."""
    graph = GraphEditor(model)
    linear = graph.linear(site)
    packed = {role: graph.constant(f"{site.id}.{role}", fit.tensors[role]) for role in fit.tensors}
    inputs = {"x": linear.input, **packed, "bias": linear.bias}
    attributes = dict(fit.attributes)
    if not fit.strip and site.format is None:
        inputs["dense"] = linear.weight
        attributes["dense_is_kn"] = int(not site.transposed)
    return [graph.replace(linear, "SeedDeltaMatMul", inputs, attributes)]
