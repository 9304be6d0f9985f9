"""Puts HeadShortlist where the head's BlockMatMul stood."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, Fit, Site, TamizError, add_initializer, replace
from tamiz_head_shortlist.sketch import TENSORS

_BIAS = 3


def rewrite(site: Site, fit: Fit, model: ir.Model) -> list[ir.Node]:
    """Gives the head its sketch; the packed weight stays the one that is there.

    Raises:
        TamizError: The head is no BlockMatMul.
    """
    node = next((n for n in model.graph if n.name == site.node), None)
    if node is None or node.domain != DOMAIN or node.op_type != "BlockMatMul":
        found = "nothing" if node is None else node.op_type
        raise TamizError(f"site {site.id}: {site.node!r} is {found}, expected BlockMatMul")
    inputs = [*node.inputs, None, None][: _BIAS + 1]
    tensors = dict(fit.tensors)
    bias = inputs[_BIAS]
    if bias is not None:
        assert bias.const_value is not None
        tensors["offset"] = np.asarray(tensors["offset"] + bias.const_value.numpy(), np.float32)
    for name in TENSORS:
        if name in tensors:
            inputs.append(add_initializer(model, f"{site.weight}.{name}", tensors[name]))
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    attributes |= fit.attributes
    return [replace(model, node, [node.outputs[0]], "HeadShortlist", inputs, attributes)]
