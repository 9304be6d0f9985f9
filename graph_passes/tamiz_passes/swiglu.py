"""Recognises the gated activation of a feed-forward block.

y = silu(gate) · up,   silu(g) = g · sigmoid(g)       (Shazeer 2020)
y = gelu(gate) · up,   gelu(g) = g/2 · (1 + tanh(sqrt(2/π) · (g + 0.044715 g³)))
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import MatchResult, OrValue

from tamiz.api import DOMAIN, GraphPass, Phase
from tamiz_passes.rules import Rule, apply
from tamiz_passes.soft_cap import logit_tanh
from tamiz_passes.values import same_shape, scalar_for, shown


class RecogniseSwiGLU(GraphPass):
    """Puts tamiz.SwiGLU for silu(gate) · up and gelu(gate) · up."""

    name = "swiglu"
    phase = Phase.RECOGNISE
    needs = frozenset({"linears"})
    provides = frozenset({"swiglu"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = apply(self, model, _SwiGLU, _GeGLU, _GeGLUHalvedLast, _GeluOperator)
        cap = logit_tanh(model)
        for node in model.graph:
            activation = node.op_type in ("Tanh", "Erf", "Gelu", "Relu", "Sigmoid")
            if activation and node.domain == "" and node is not cap:
                self.note(
                    node, f"{node.op_type} is not part of silu(gate) · up or gelu(gate) · up."
                )
        return ir.passes.PassResult(model, modified=modified)


class _Gated(Rule):
    """Checks and the rewrite that all activations share."""

    activation = ""

    def accept(self, y: ir.Value, gate: ir.Value, up: ir.Value) -> MatchResult:
        if gate.dtype != ir.DataType.FLOAT:
            found = gate.dtype.name if gate.dtype is not None else "an unknown type"
            return self.refuse(y, f"The activation works on {found}, expected FLOAT.")
        if gate.shape is None or up.shape is None:
            return self.refuse(y, "The shapes of gate and up are not known.")
        if not same_shape(gate, up):
            return self.refuse(
                y, f"Gate {shown(gate)} and up {shown(up)} are not known to have the same shape."
            )
        return MatchResult()

    def rewrite(self, op: Any, gate: ir.Value, up: ir.Value, **_: Any) -> Any:
        attributes = {"activation": self.activation} if self.activation else {}
        return op.SwiGLU(gate, up, **attributes, _domain=DOMAIN)


class _SwiGLU(_Gated):
    marks = (frozenset({"Sigmoid", "Swish"}),)

    def pattern(self, op: Any, gate: Any, up: Any) -> Any:
        swish = op.Swish(gate, _allow_other_attributes=False)  # without its alpha
        silu = OrValue([op.Mul(gate, op.Sigmoid(gate)), swish])
        return op.Mul(silu, up, _outputs=["y"])

    def check(self, _: Any, y: ir.Value, gate: ir.Value, up: ir.Value) -> MatchResult:
        return self.accept(y, gate, up)


#: Constants of the tanh approximation by their names in the pattern.
_GELU = {"three": 3.0, "cubic": 0.044715, "root": (2 / np.pi) ** 0.5, "one": 1.0, "half": 0.5}


class _GeGLU(_Gated):
    marks = (frozenset({"Tanh"}),)
    activation = "gelu_tanh"

    def pattern(
        self, op: Any, gate: Any, up: Any, three: Any, cubic: Any, root: Any, one: Any, half: Any
    ) -> Any:
        tanh = self.tanh(op, gate, three, cubic, root)
        return op.Mul(op.Mul(op.Mul(gate, half), op.Add(tanh, one)), up, _outputs=["y"])

    def tanh(self, op: Any, gate: Any, three: Any, cubic: Any, root: Any) -> Any:
        power = OrValue([op.Pow(gate, three), op.Mul(gate, op.Mul(gate, gate))])
        cube = op.Mul(power, cubic)
        return op.Tanh(op.Mul(op.Add(gate, cube), root))

    def check(
        self,
        _: Any,
        y: ir.Value,
        gate: ir.Value,
        up: ir.Value,
        cubic: ir.Value,
        root: ir.Value,
        one: ir.Value,
        half: ir.Value,
        three: ir.Value | None = None,
    ) -> MatchResult:
        found = {"three": three, "cubic": cubic, "root": root, "one": one, "half": half}
        for name, expected in _GELU.items():
            if found[name] is None:  # of x · x · x
                continue
            number = scalar_for(gate, found[name])
            if number is None or not math.isclose(number, expected, rel_tol=1e-6):
                return self.refuse(y, f"Gelu has {number} for {name}, expected {expected}.")
        return self.accept(y, gate, up)


class _GeGLUHalvedLast(_GeGLU):
    def pattern(
        self, op: Any, gate: Any, up: Any, three: Any, cubic: Any, root: Any, one: Any, half: Any
    ) -> Any:
        tanh = self.tanh(op, gate, three, cubic, root)
        return op.Mul(op.Mul(op.Mul(gate, op.Add(tanh, one)), half), up, _outputs=["y"])


class _GeluOperator(_Gated):
    marks = (frozenset({"Gelu"}),)
    activation = "gelu_tanh"

    def pattern(self, op: Any, gate: Any, up: Any) -> Any:
        gelu = op.Gelu(gate, approximate="tanh")
        return op.Mul(gelu, up, _outputs=["y"])

    def check(self, _: Any, y: ir.Value, gate: ir.Value, up: ir.Value) -> MatchResult:
        return self.accept(y, gate, up)
