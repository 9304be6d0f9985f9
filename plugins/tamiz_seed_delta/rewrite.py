"""Puts SeedDeltaMatMul where the dense products stood."""

from __future__ import annotations

import onnx_ir as ir

from tamiz.graph import add_initializer, find_linear, replace_linear
from tamiz.site import Site
from tamiz.technique import Fit


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product at `site`; where dense is not stripped, it stays as the fallback."""
    linear = find_linear(model, site)

    def constant(name: str) -> ir.Value | None:
        if name not in fit.tensors:
            return None
        return add_initializer(model, f"{site.id}.{name}", fit.tensors[name])

    inputs = [linear.input, *map(constant, ("deltas", "starts", "row_scale", "spectrum"))]
    inputs += [None, linear.bias]  # no mask
    attributes = dict(fit.attributes)
    if not fit.strip:
        inputs.append(linear.weight)
        attributes["dense_is_kn"] = int(not site.transposed)
    return [replace_linear(model, linear, "SeedDeltaMatMul", inputs, attributes)]
