"""Puts HeadShortlist in place of the head's BlockMatMul."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tamiz.api import Fit, GraphEditor, Site, input_of
from tamiz_head_shortlist.sketch import TENSORS

if TYPE_CHECKING:
    import onnx_ir as ir


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Gives the head its sketch; the packed weight stays.

    Raises:
        FitError: The head is no BlockMatMul.
    """
    graph = GraphEditor(model)
    node = graph.op(site, "BlockMatMul")
    inputs = {port: input_of(node, port) for port in ("x", "weight", "mask", "bias")}
    tensors, bias = dict(fit.tensors), inputs["bias"]
    if bias is not None:
        assert bias.const_value is not None
        tensors["offset"] = np.asarray(tensors["offset"] + bias.const_value.numpy(), np.float32)
    for name in TENSORS:
        if name in tensors:
            inputs[name] = graph.constant(f"{site.weight}.{name}", tensors[name])
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    return [graph.replace(node, "HeadShortlist", inputs, attributes | dict(fit.attributes))]
