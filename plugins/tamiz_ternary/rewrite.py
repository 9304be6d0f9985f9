"""Puts TernaryMatMul where the dense products stood."""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import Fit, Site, add_initializer, find_linear, replace_linear


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product at `site`."""
    linear = find_linear(model, site)
    weight = add_initializer(model, f"{site.id}.ternary", fit.tensors["weight"])
    units = add_initializer(model, f"{site.id}.units", fit.tensors["units"])
    inputs = [linear.input, weight, units, None, linear.bias]  # no mask
    return [replace_linear(model, linear, "TernaryMatMul", inputs, fit.attributes)]
