"""Recognises RMSNorm written in primitive ops.

y = x / sqrt(mean(x²) + ε) · w       over the last dimension (Zhang & Sennrich 2019)
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from onnxscript.rewriter.pattern import MatchResult, OrValue

from tamiz.api import DOMAIN, GraphPass, Phase
from tamiz_passes.rules import Rule, apply
from tamiz_passes.skip_norm import take_apart
from tamiz_passes.values import constant, last_dim, producer, scalar_for, too_deep


class RecogniseRMSNorm(GraphPass):
    """Puts tamiz.RMSNorm for the primitive ops, and for the ops that other tools make of them."""

    name = "rms-norm"
    phase = Phase.RECOGNISE
    needs = frozenset({"linears"})
    provides = frozenset({"rms-norm"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = apply(self, model, _Primitive, _Operator, _SimplifiedOperator)
        modified |= take_apart(self, model)
        modified |= _before_transposes(model)
        noted = {note.node for note in self.notes}
        for node in model.graph:
            if node.op_type == "ReduceMean" and node.name not in noted:
                self.note(node, "This mean is not part of w·x / sqrt(mean(x²) + ε).")
        return ir.passes.PassResult(model, modified=modified)


def _before_transposes(model: ir.Model) -> bool:
    """Norms heads before they are turned, as most exporters write it: the last dimension stays."""
    modified = False
    for norm in list(model.graph):
        if (norm.domain, norm.op_type) != (DOMAIN, "RMSNorm") or len(norm.inputs) != 2:
            continue
        turn = producer(norm.inputs[0], "Transpose")
        perm = turn.attributes.get("perm") if turn is not None else None
        before = turn.inputs[0] if turn is not None else None
        if turn is None or perm is None or before is None or before.shape is None:
            continue
        stays = perm.as_ints()[-1] == len(before.shape) - 1
        if not stays or len(turn.outputs[0].uses()) != 1 or norm.outputs[0].is_graph_output():
            continue
        turned, normed = turn.outputs[0], norm.outputs[0]
        normed.replace_all_uses_with(turned)
        norm.replace_input_with(0, before)
        turn.replace_input_with(0, normed)
        normed.shape, turned.shape = before.shape, normed.shape
        modified = True
    if modified:
        model.graph.sort()
    return modified


class _Norm(Rule):
    """Checks and the rewrite that all spellings share."""

    def accept(
        self, y: ir.Value, x: ir.Value, weight: ir.Value, epsilon: float | None
    ) -> MatchResult:
        self.epsilon = epsilon
        if epsilon is None or epsilon < 0:
            return self.refuse(y, "The norm's epsilon is not a constant.")
        if x.dtype != ir.DataType.FLOAT:
            found = x.dtype.name if x.dtype is not None else "an unknown type"
            return self.refuse(y, f"The norm works on {found}, expected FLOAT.")
        if reason := too_deep(x):
            return self.refuse(y, reason)
        array = weight.const_value
        if array is None or len(array.shape) != 1:
            return self.refuse(y, "The norm's weight is not a constant vector.")
        if array.dtype != ir.DataType.FLOAT:
            return self.refuse(y, f"The norm's weight is {array.dtype.name}, expected FLOAT.")
        size = last_dim(x)
        if size is None:
            return self.refuse(y, "The width of the norm's input is not known.")
        if size != array.shape[0]:
            return self.refuse(
                y, f"The norm's weight has {array.shape[0]} elements, expected {size}."
            )
        return MatchResult()

    def rewrite(self, op: Any, x: ir.Value, weight: ir.Value, **_: Any) -> Any:
        return op.RMSNorm(x, weight, epsilon=self.epsilon, _domain=DOMAIN)


class _Primitive(_Norm):
    """Norms of one value share nodes, which go when none of them is left."""

    marks = (frozenset({"ReduceMean"}), frozenset({"Sqrt"}))

    def __init__(self, owner: GraphPass) -> None:
        super().__init__(owner)
        self.remove_nodes = False

    def pattern(self, op: Any, x: Any, weight: Any, epsilon: Any, exponent: Any, one: Any) -> Any:
        square = OrValue([op.Pow(x, exponent), op.Mul(x, x)])
        mean = op.ReduceMean(
            square, _allow_other_inputs=True, _allow_other_attributes=True, _outputs=["mean"]
        )
        deviation = op.Sqrt(op.Add(mean, epsilon))
        inverse = OrValue([op.Div(one, deviation), op.Reciprocal(deviation)])
        normalised = OrValue([op.Mul(x, inverse), op.Div(x, deviation)])
        return op.Mul(normalised, weight, _outputs=["y"])

    def check(
        self,
        _: Any,
        y: ir.Value,
        x: ir.Value,
        weight: ir.Value,
        epsilon: ir.Value,
        mean: ir.Value,
        exponent: ir.Value | None = None,
        one: ir.Value | None = None,
    ) -> MatchResult:
        if x.shape is None:
            return self.refuse(y, "The shape of the norm's input is not known.")
        if exponent is not None and scalar_for(x, exponent) != 2.0:
            return self.refuse(y, "The norm does not square its input.")
        if one is not None and scalar_for(x, one) != 1.0:
            return self.refuse(y, "The norm divides another number than 1 by the deviation.")
        if _axes(mean) != [-1] and _axes(mean) != [len(x.shape) - 1]:
            return self.refuse(y, f"The norm's mean is over axes {_axes(mean)}, expected [-1].")
        return self.accept(y, x, weight, scalar_for(x, epsilon))


class _Operator(_Norm):
    marks = (frozenset({"RMSNormalization"}),)

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        return op.RMSNormalization(x, weight, _allow_other_attributes=True, _outputs=["y"])

    def check(self, _: Any, y: ir.Value, x: ir.Value, weight: ir.Value) -> MatchResult:
        node = y.producer()
        assert node is not None
        axis, epsilon = node.attributes.get("axis"), node.attributes.get("epsilon")
        if x.shape is None:
            return self.refuse(y, "The shape of the norm's input is not known.")
        if axis is not None and axis.as_int() not in (-1, len(x.shape) - 1):
            return self.refuse(y, f"The norm is over axis {axis.as_int()}, expected -1.")
        stash = node.attributes.get("stash_type")
        if stash is not None and stash.as_int() != ir.DataType.FLOAT:
            return self.refuse(y, "The norm computes in another type than float32.")
        return self.accept(y, x, weight, epsilon.as_float() if epsilon is not None else 1e-5)


class _SimplifiedOperator(_Operator):
    """onnxruntime's older name of the same op, in the standard domain by mistake."""

    marks = (frozenset({"SimplifiedLayerNormalization"}),)

    def pattern(self, op: Any, x: Any, weight: Any) -> Any:
        return op.SimplifiedLayerNormalization(
            x, weight, _allow_other_attributes=True, _outputs=["y"]
        )


def _axes(mean: ir.Value) -> list[int] | None:
    """The axes of a ReduceMean that keeps its dimensions; None if they are not constant."""
    node = mean.producer()
    assert node is not None
    keepdims = node.attributes.get("keepdims")
    if keepdims is not None and keepdims.as_int() != 1:
        return None
    if "axes" in node.attributes:
        return list(node.attributes["axes"].as_ints())
    axes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    return None if axes is None else [int(a) for a in axes.reshape(-1)]
