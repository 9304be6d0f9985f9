"""Puts KwtaMask before the product of a site, which takes it as its mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tamiz.api import Fit, FitError, GraphEditor, Site, input_of

if TYPE_CHECKING:
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

    mask, centred = graph.value(f"{site.id}.kwta.mask", "UINT8"), []
    if "center" in fit.tensors or "renorm" in fit.attributes:
        centred = [graph.value(f"{site.id}.kwta.centred", x)]
    inputs = {
        "x": x,
        "weight": constant("score"),
        "position_ids": graph.input("position_ids"),
        "candidates": input_of(node, "mask"),
        "center": constant("center"),
        "slope": constant("slope"),
    }
    made = graph.insert(
        node, f"{site.id}.kwta", "KwtaMask", inputs, fit.attributes, [mask, *centred]
    )
    graph.connect(node, "mask", mask)
    for value in centred:
        graph.connect(node, "x", value)
    if "shift" in fit.tensors:
        graph.connect(node, "bias", _shifted(graph, site, node, fit))
    graph.set(node, {"block": int(fit.attributes["block"])})
    return [made, node]


def _shifted(graph: GraphEditor, site: Site, node: ir.Node, fit: Fit) -> ir.Value:
    """The bias with W μ added."""
    shift, bias = fit.tensors["shift"], input_of(node, "bias")
    if bias is not None:
        if bias.const_value is None:
            raise FitError("its bias is computed, expected a constant")
        shift = shift + bias.const_value.numpy()
    return graph.constant(f"{site.id}.kwta.shift", shift)
