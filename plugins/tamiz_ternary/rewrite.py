"""Puts TernaryMatMul in place of dense products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamiz.api import Fit, GraphEditor, Site

if TYPE_CHECKING:
    import onnx_ir as ir


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product at `site`."""
    graph = GraphEditor(model)
    linear = graph.linear(site)
    weight = graph.constant(f"{site.id}.ternary", fit.tensors["weight"])
    units = graph.constant(f"{site.id}.units", fit.tensors["units"])
    inputs = {"x": linear.input, "weight": weight, "units": units, "bias": linear.bias}
    return [graph.replace(linear, "TernaryMatMul", inputs, fit.attributes)]
