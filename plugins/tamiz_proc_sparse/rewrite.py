"""Puts ProcSparseMatMul where the dense products stood."""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import Fit, Site, add_initializer, find_linear, replace_linear


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product at `site`."""
    linear = find_linear(model, site)
    deltas, starts = (
        add_initializer(model, f"{site.id}.{name}", fit.tensors[name])
        for name in ("deltas", "starts")
    )
    inputs = [linear.input, deltas, starts, None, linear.bias]  # no mask
    return [replace_linear(model, linear, "ProcSparseMatMul", inputs, fit.attributes)]
