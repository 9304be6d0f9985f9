"""Recognises SwiGLU, the gated activation of a feed-forward block.

y = silu(gate) · up,   silu(g) = g · sigmoid(g)       (Shazeer 2020)
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter.pattern import MatchResult, OrValue

from tamiz.api import DOMAIN, GraphPass, Phase
from tamiz_passes.rules import Rule, apply


class RecogniseSwiGLU(GraphPass):
    """Puts tamiz.SwiGLU for silu(gate) · up."""

    name = "swiglu"
    phase = Phase.RECOGNISE
    needs = frozenset({"clean"})
    provides = frozenset({"swiglu"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = apply(self, model, _SwiGLU)
        for node in model.graph:
            if node.op_type in ("Tanh", "Erf", "Gelu", "Relu", "Sigmoid") and node.domain == "":
                self.note(node, f"Activation {node.op_type} is not part of silu(gate) · up.")
        return ir.passes.PassResult(model, modified=modified)


class _SwiGLU(Rule):
    def pattern(self, op: Any, gate: Any, up: Any) -> Any:
        silu = OrValue([op.Mul(gate, op.Sigmoid(gate)), op.Swish(gate)])
        return op.Mul(silu, up, _outputs=["y"])

    def check(self, _: Any, y: ir.Value, gate: ir.Value, up: ir.Value) -> MatchResult:
        if y.dtype is not None and y.dtype != ir.DataType.FLOAT:
            return self.refuse(y, f"The activation works on {y.dtype.name}, expected FLOAT.")
        if gate.shape is None or up.shape is None or gate.shape[-1] != up.shape[-1]:
            return self.refuse(y, f"Gate {gate.shape} and up {up.shape} differ in shape.")
        return MatchResult()

    def rewrite(self, op: Any, gate: ir.Value, up: ir.Value, **_: Any) -> Any:
        return op.SwiGLU(gate, up, _domain=DOMAIN)
