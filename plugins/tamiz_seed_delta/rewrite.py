"""Puts SeedDeltaMatMul where the dense products stood."""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import Fit, Site, add_initializer, find_linear, replace_linear

#: What a fit may hold.
TENSORS = ("deltas", "starts", "row_scale", "spectrum", "seedlm")


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Replaces the product at `site`; where dense is not stripped, it stays as the fallback."""
    linear = find_linear(model, site)

    def constant(name: str) -> ir.Value | None:
        if name not in fit.tensors:
            return None
        return add_initializer(model, f"{site.id}.{name}", fit.tensors[name])

    deltas, starts, row_scale, spectrum, seedlm = map(constant, TENSORS)
    mask, dense = None, None if fit.strip else linear.weight
    inputs = [linear.input, deltas, starts, row_scale, spectrum, mask, linear.bias, dense, seedlm]
    attributes = dict(fit.attributes)
    if dense is not None:
        attributes["dense_is_kn"] = int(not site.transposed)
    return [replace_linear(model, linear, "SeedDeltaMatMul", inputs, attributes)]
