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
from tamiz_passes.values import operands, producer, same_shape, scalar_for, shown


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


class _GeGLU(_Gated):
    marks = (frozenset({"Tanh"}),)
    activation = "gelu_tanh"

    def pattern(self, op: Any, gate: Any, up: Any, inner: Any, one: Any, half: Any) -> Any:
        tanh = op.Tanh(inner)
        return op.Mul(op.Mul(op.Mul(gate, half), op.Add(tanh, one)), up, _outputs=["y"])

    def check(
        self,
        _: Any,
        y: ir.Value,
        gate: ir.Value,
        up: ir.Value,
        inner: ir.Value,
        one: ir.Value,
        half: ir.Value,
    ) -> MatchResult:
        found = cubic_argument(inner, gate)
        if found is None:
            return MatchResult().fail("The argument of tanh is not that of gelu.", inner)
        for name, value, expected in (*found, ("one", one, 1.0), ("half", half, 0.5)):
            number = scalar_for(gate, value)
            if number is None or not math.isclose(number, expected, rel_tol=1e-6):
                return self.refuse(y, f"Gelu has {number} for {name}, expected {expected}.")
        return self.accept(y, gate, up)


class _GeGLUHalvedLast(_GeGLU):
    def pattern(self, op: Any, gate: Any, up: Any, inner: Any, one: Any, half: Any) -> Any:
        tanh = op.Tanh(inner)
        return op.Mul(op.Mul(op.Mul(gate, op.Add(tanh, one)), half), up, _outputs=["y"])


def cubic_argument(value: ir.Value, gate: ir.Value) -> list[tuple[str, ir.Value, float]] | None:
    """Name, value and number of each constant of sqrt(2/π) · (g + 0.044715 g³); None of others.

    It is read by code, since a pattern of its ops alone has 64 orders of operands.
    """
    total, root = _apart(value, "Mul", "Add")
    cube, _ = _apart(total, "Add", "Mul", beside=gate)
    power, cubic = _apart(cube, "Mul", "Pow", "Mul")
    node = producer(power, "Pow", "Mul")
    if node is None or root is None or cubic is None:
        return None
    constants = [("root", root, (2 / np.pi) ** 0.5), ("cubic", cubic, 0.044715)]
    if node.op_type == "Pow":
        base, three = operands(node)
        return [*constants, ("three", three, 3.0)] if base is gate else None
    square, _ = _apart(power, "Mul", "Mul", beside=gate)
    node = producer(square, "Mul")
    return constants if node is not None and operands(node) == [gate, gate] else None


def _apart(
    value: ir.Value | None, op_type: str, *inner: str, beside: ir.Value | None = None
) -> tuple[ir.Value | None, ir.Value | None]:
    """The operand of a product or sum that an op of `inner` computes, and the other one."""
    node = producer(value, op_type)
    if node is None:
        return None, None
    left, right = operands(node)
    for one, other in ((left, right), (right, left)):
        if producer(one, *inner) is not None and (beside is None or other is beside):
            return one, other
    return None, None


class _GeluOperator(_Gated):
    marks = (frozenset({"Gelu"}),)
    activation = "gelu_tanh"

    def pattern(self, op: Any, gate: Any, up: Any) -> Any:
        gelu = op.Gelu(gate, approximate="tanh")
        return op.Mul(gelu, up, _outputs=["y"])

    def check(self, _: Any, y: ir.Value, gate: ir.Value, up: ir.Value) -> MatchResult:
        return self.accept(y, gate, up)
