"""Puts KwtaMask before the product of a site, which takes it as its mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamiz.api import Fit, FitError, GraphEditor, Site, input_of, product_of

if TYPE_CHECKING:
    import numpy as np
    import onnx_ir as ir


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Adds the mask to the op that the owner of the weights has put at `site`.

    Raises:
        FitError: That op takes no mask.
    """
    graph = GraphEditor(model)
    node = graph.masked(site)
    x = input_of(node, "x")

    def constant(role: str) -> ir.Value | None:
        if role not in fit.tensors:
            return None
        return graph.constant(f"{site.id}.kwta.{role}", fit.tensors[role])

    outputs = {"mask": graph.value(f"{site.id}.kwta.mask", "UINT8")}
    if "center" in fit.tensors or "renorm" in fit.attributes:
        outputs["x"] = graph.value(f"{site.id}.kwta.centred", x)
    shifted, bias = None, input_of(node, "bias")
    if "center" in fit.tensors:
        shifted = _shifted(graph, site, node, fit.tensors["center"])
        outputs["bias"] = graph.value(f"{site.id}.kwta.bias", shifted)
    inputs = {
        "x": x,
        "weight": constant("score"),
        "position_ids": graph.input("position_ids"),
        "candidates": input_of(node, "mask"),
        "center": constant("center"),
        "slope": constant("slope"),
    }
    if shifted is not None:
        inputs |= {"shifted_bias": shifted, "plain_bias": bias}
    mask_node = graph.insert(
        node, f"{site.id}.kwta", "KwtaMask", inputs, fit.attributes, list(outputs.values())
    )
    for port, value in outputs.items():
        graph.connect(node, port, value)
    graph.set(node, {"block": int(fit.attributes["block"])})
    return [mask_node, node]


def _shifted(graph: GraphEditor, site: Site, node: ir.Node, center: np.ndarray) -> ir.Value:
    """The bias with W μ added, of the W that the op at the site multiplies with."""
    shift, bias = product_of(node, center), input_of(node, "bias")
    if bias is not None:
        if bias.const_value is None:
            raise FitError("its bias is computed, expected a constant")
        shift = shift + bias.const_value.numpy()
    return graph.constant(f"{site.id}.kwta.shift", shift)
