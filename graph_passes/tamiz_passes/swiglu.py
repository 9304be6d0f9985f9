"""Recognises the activation of a feed-forward block, y = f(gate) · up, or f(x) of a decoder.

silu        g · sigmoid(g)                                          (Shazeer 2020)
gelu        g/2 · (1 + erf(g / sqrt(2)))
gelu_tanh   g/2 · (1 + tanh(sqrt(2/π) · (g + 0.044715 g³)))
quick_gelu  g · sigmoid(1.702 g)
relu        max(g, 0)
relu2       max(g, 0)²
xielu       see `xielu`, without up
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from onnxscript.rewriter.pattern import MatchResult

from tamiz.api import DOMAIN, PAST, GraphPass, Phase
from tamiz_passes.rules import Rule, apply
from tamiz_passes.soft_cap import logit_tanh
from tamiz_passes.values import operands, producer, same_shape, scalar_for, shown, too_deep
from tamiz_passes.xielu import Xielu


class RecogniseSwiGLU(GraphPass):
    """Puts tamiz.SwiGLU for f(gate) · up, and in a decoder for f(x)."""

    name = "swiglu"
    phase = Phase.RECOGNISE
    needs = frozenset({"linears"})
    provides = frozenset({"swiglu"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = apply(self, model, *_ACTIVATIONS)
        modified |= apply(self, model, _Relu)
        if any((value.name or "").startswith(PAST) for value in model.graph.inputs):
            modified |= recognise_alone(self, model)
        cap = logit_tanh(model)
        for node in model.graph:
            activation = node.op_type in ("Tanh", "Erf", "Gelu", "Relu", "Sigmoid")
            if activation and node.domain == "" and node is not cap:
                self.note(node, f"{node.op_type} is not part of an activation that tamiz fuses.")
        return ir.passes.PassResult(model, modified=modified)


def recognise_alone(owner: GraphPass, model: ir.Model) -> bool:
    """Puts tamiz.SwiGLU for f(x) without up. Returns whether there was any."""
    modified = apply(owner, model, Xielu, *map(_alone, _ACTIVATIONS))
    return apply(owner, model, _alone(_Relu)) or modified


#: Name, value and number of a constant.
_Constant = tuple[str, ir.Value, float]

#: Constants by their names in the patterns.
_CONSTANTS = {
    "one": 1.0,
    "half": 0.5,
    "root_of_two": 2**0.5,
    "slope": 1.702,
}


class _Activation(Rule):
    """f(gate) · up. Subclasses are the spellings of each f."""

    activation: ClassVar[str]

    def pattern(
        self,
        op: Any,
        gate: Any,
        up: Any,
        inner: Any,
        one: Any,
        half: Any,
        root_of_two: Any,
        slope: Any,
    ) -> Any:
        found = SimpleNamespace(
            inner=inner, one=one, half=half, root_of_two=root_of_two, slope=slope
        )
        return op.Mul(self.of(op, gate, found), up, _outputs=["y"])

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        """The pattern of f(gate); c has the constants, and the argument of a tanh as `inner`."""
        raise NotImplementedError

    def constants(self, gate: ir.Value, found: Mapping[str, Any]) -> list[_Constant] | None:
        """The constants of a match; None where it is not of f."""
        given = ((name, found.get(name), number) for name, number in _CONSTANTS.items())
        return [(name, value, number) for name, value, number in given if value is not None]

    def check(self, op: Any, *_: Any, **found: Any) -> MatchResult:
        y, gate, up = (found[name] for name in ("y", "gate", "up"))
        if up.producer() in op.nodes:  # f(gate) · f(gate)
            return MatchResult().fail("What is multiplied is a part of f(gate).", up)
        if self.constants(gate, found) is None:  # in this order of operands
            return MatchResult().fail("It is another function.")
        if reason := _difference(self, gate, found):
            return self.refuse(y, reason)
        if gate.shape is None or up.shape is None:
            return self.refuse(y, "The shapes of gate and up are not known.")
        if not same_shape(gate, up):
            return self.refuse(
                y, f"Gate {shown(gate)} and up {shown(up)} are not known to have the same shape."
            )
        return MatchResult()

    def rewrite(self, op: Any, gate: ir.Value, up: ir.Value, **_: Any) -> Any:
        return op.SwiGLU(gate, up, **_attributes(self.activation), _domain=DOMAIN)


def _difference(rule: _Activation, gate: ir.Value, found: Mapping[str, Any]) -> str:
    """Why constants of a match, or the type of the gate, are not those of f."""
    for name, value, expected in rule.constants(gate, found) or ():
        number = scalar_for(gate, value)
        if number is None or not math.isclose(number, expected, rel_tol=1e-6):
            return f"{rule.activation} has {number} for {name}, expected {expected}."
    if gate.dtype != ir.DataType.FLOAT:
        kind = gate.dtype.name if gate.dtype is not None else "an unknown type"
        return f"The activation works on {kind}, expected FLOAT."
    return too_deep(gate) or ""


def _attributes(activation: str) -> dict[str, str]:
    return {} if activation == "silu" else {"activation": activation}


class _Silu(_Activation):
    marks = (frozenset({"Sigmoid"}),)
    activation = "silu"

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Mul(gate, op.Sigmoid(gate))


class _Swish(_Activation):
    marks = (frozenset({"Swish"}),)
    activation = "silu"

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Swish(gate, _allow_other_attributes=False)  # without its alpha


class _GeluTanh(_Activation):
    marks = (frozenset({"Tanh"}),)
    activation = "gelu_tanh"

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Mul(op.Mul(gate, c.half), op.Add(op.Tanh(c.inner), c.one))

    def constants(self, gate: ir.Value, found: Mapping[str, Any]) -> list[_Constant] | None:
        inner, given = cubic_argument(found["inner"], gate), super().constants(gate, found)
        return None if inner is None or given is None else [*inner, *given]


class _GeluTanhHalvedLast(_GeluTanh):
    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Mul(op.Mul(gate, op.Add(op.Tanh(c.inner), c.one)), c.half)


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


class _GeluTanhOperator(_Activation):
    marks = (frozenset({"Gelu"}),)
    activation = "gelu_tanh"

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Gelu(gate, approximate="tanh")


class _Gelu(_Activation):
    marks = (frozenset({"Erf"}),)
    activation = "gelu"

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Mul(op.Mul(gate, c.half), op.Add(self.erf(op, gate, c), c.one))

    def erf(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Erf(op.Div(gate, c.root_of_two))


class _GeluHalvedLast(_Gelu):
    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Mul(op.Mul(gate, op.Add(self.erf(op, gate, c), c.one)), c.half)


class _GeluOperator(_Activation):
    marks = (frozenset({"Gelu"}),)
    activation = "gelu"

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Gelu(gate, _allow_other_attributes=False)


class _GeluOperatorNamed(_GeluOperator):
    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Gelu(gate, approximate="none")


class _QuickGelu(_Activation):
    marks = (frozenset({"Sigmoid"}),)
    activation = "quick_gelu"

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Mul(gate, op.Sigmoid(op.Mul(gate, c.slope)))


class _Relu2(_Activation):
    marks = (frozenset({"Relu"}),)
    activation = "relu2"

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        relu = op.Relu(gate)
        return op.Mul(relu, relu)


class _Relu(_Activation):
    marks = (frozenset({"Relu"}),)
    activation = "relu"

    def of(self, op: Any, gate: Any, c: SimpleNamespace) -> Any:
        return op.Relu(gate)

    def check(self, op: Any, *_: Any, **found: Any) -> MatchResult:
        before = found["up"].producer()
        if before is not None and before.op_type == "Relu" and before.inputs[0] is found["gate"]:
            return MatchResult().fail("It is relu2 without up.")
        return super().check(op, *_, **found)


#: All but `_Relu`, which would also match a part of `_Relu2`.
_ACTIVATIONS = (
    *(_Silu, _Swish),
    *(_GeluTanh, _GeluTanhHalvedLast, _GeluTanhOperator),
    *(_Gelu, _GeluHalvedLast, _GeluOperator, _GeluOperatorNamed),
    *(_QuickGelu, _Relu2),
)


@cache
def _alone(rule: type[_Activation]) -> type[_Activation]:
    """The rule of f(gate) without up."""

    class Alone(rule):  # type: ignore[valid-type, misc]
        def pattern(
            self,
            op: Any,
            gate: Any,
            inner: Any,
            one: Any,
            half: Any,
            root_of_two: Any,
            slope: Any,
        ) -> Any:
            found = SimpleNamespace(
                inner=inner, one=one, half=half, root_of_two=root_of_two, slope=slope
            )
            return self.of(op, gate, found)

        def check(self, op: Any, *_: Any, **found: Any) -> MatchResult:
            if self.constants(found["gate"], found) is None:
                return MatchResult().fail("It is another function.")
            reason = _difference(self, found["gate"], found)
            return MatchResult().fail(reason) if reason else MatchResult()

        def rewrite(self, op: Any, gate: ir.Value, **_: Any) -> Any:
            return op.SwiGLU(gate, **_attributes(self.activation), _domain=DOMAIN)

    return Alone
