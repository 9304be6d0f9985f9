"""Lets a norm add its own residual.

s = x + r,  y = norm(s)      becomes      y, s = RMSNorm(x, w, r)
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor, GraphPass, Phase
from tamiz_passes.values import producer, same_shape


class AbsorbResidual(GraphPass):
    """Moves the residual Add before a tamiz.RMSNorm into it."""

    name = "residual"
    phase = Phase.RECOGNISE
    needs = frozenset({"rms-norm"})
    provides = frozenset({"residual"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        for norm in list(model.graph):
            if norm.domain != DOMAIN or norm.op_type != "RMSNorm" or len(norm.inputs) > 2:
                continue
            total, weight = norm.inputs
            add = producer(total, "Add")
            if add is None or total is None:
                continue
            x, residual = add.inputs
            if x is None or residual is None or x.is_initializer() or residual.is_initializer():
                continue
            if not same_shape(x, residual):
                self.note(norm, f"Add {add.name} before the norm may broadcast; it stays.")
                continue
            epsilon = {"epsilon": norm.attributes["epsilon"].as_float()}
            inputs, outputs = [x, weight, residual], [norm.outputs[0], total]
            GraphEditor(model).replace(norm, "RMSNorm", inputs, epsilon, outputs)
            modified = True
        if modified:
            model.graph.sort()
        return ir.passes.PassResult(model, modified=modified)
