"""Puts an op of the domain for residuals that no norm adds.

    y = x + r      becomes      y = Sum(x, r)

Where attention and feed-forward stand side by side, or have norms behind them alone, no norm
follows the sum. One `Fused` node then still runs all layers.
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor, GraphPass, Phase, is_constant
from tamiz_passes.values import operands, same_shape


class SumResiduals(GraphPass):
    """Replaces the sums between nodes of the domain; see the module."""

    name = "sums"
    phase = Phase.FUSE
    needs = frozenset({"norms"})
    provides = frozenset({"sums"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        for node in list(model.graph):
            if _between(node):
                x, residual = operands(node)
                inputs = {"x": x, "residual": residual}
                GraphEditor(model).replace(node, "Sum", inputs, {}, [node.outputs[0]])
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def _between(node: ir.Node) -> bool:
    """Whether a node adds what the domain computed, for the domain."""
    if (node.domain, node.op_type) != ("", "Add"):
        return False
    values = operands(node)
    before = (value.producer() for value in values)
    after = node.outputs[0].consumers()
    return (
        any(each is not None and each.domain == DOMAIN for each in before)
        and any(each.domain == DOMAIN for each in after)
        and all(value.dtype == ir.DataType.FLOAT and not is_constant(value) for value in values)
        and same_shape(*values)
    )
