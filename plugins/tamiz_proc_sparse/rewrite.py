"""Puts ProcSparseMatMul in place of dense products."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamiz.api import Fit, GraphEditor, Site

if TYPE_CHECKING:
    import onnx_ir as ir


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product at `site`."""
    graph = GraphEditor(model)
    linear = graph.linear(site)
    packed = {role: graph.constant(f"{site.id}.{role}", fit.tensors[role]) for role in fit.tensors}
    inputs = {"x": linear.input, **packed, "bias": linear.bias}
    return [graph.replace(linear, "ProcSparseMatMul", inputs, fit.attributes)]
