"""Lets the caller say for how many positions the head is computed.

    logits = W · h            becomes      logits = W · h[:, −k:]

k is a graph input `logits_to_keep` (int64 ``[1]``) with the default 0, all positions, so a caller
that does not know it sees no change. Reading a prompt needs the last position's logits only, and
onnxruntime computes outputs that nobody fetches all the same.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.graph import GraphPass, Phase, add_initializer, constant_weight

NAME = "logits_to_keep"
#: What may stand between the head and the logits: a bias, a soft cap, a cast.
_AFTER_HEAD = ("Add", "Cast", "Div", "Mul", "Tanh")


class LogitsToKeep(GraphPass):
    """Slices the head's input."""

    name = "logits-to-keep"
    phase = Phase.RECOGNISE
    order = 50

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        graph = model.graph
        logits = next((value for value in graph.outputs if value.name == "logits"), None)
        if logits is None or any(value.name == NAME for value in graph.inputs):
            return ir.passes.PassResult(model, modified=False)
        node = logits.producer()
        while node is not None and node.op_type in _AFTER_HEAD and node.domain == "":
            computed = (v.producer() for v in node.inputs if v is not None)
            node = next((before for before in computed if before is not None), None)
        hidden = node.inputs[0] if node is not None else None
        if node is None or hidden is None or not _is_head(node):
            self.note(logits.producer() or graph[-1], "logits come from no MatMul with a constant")
            return ir.passes.PassResult(model, modified=False)
        if logits.shape is None or len(logits.shape) != 3:
            self.note(node, f"logits have shape {logits.shape}, expected rank 3")
            return ir.passes.PassResult(model, modified=False)
        node.replace_input_with(0, _last(model, node, hidden))
        return ir.passes.PassResult(model, modified=True)


def _is_head(node: ir.Node) -> bool:
    matmul = node.op_type == "MatMul" and node.domain == ""
    return matmul and constant_weight(node.inputs[1]) is not None


def _last(model: ir.Model, head: ir.Node, hidden: ir.Value) -> ir.Value:
    """Adds the graph input, and in front of `head` the slice that obeys it."""
    count = add_initializer(model, NAME, np.zeros(1, np.int64))
    model.graph.inputs.append(count)
    end = add_initializer(model, f"{NAME}.end", np.array([np.iinfo(np.int64).max]))
    axis = add_initializer(model, f"{NAME}.axis", np.array([1]))
    negative = ir.node("Neg", [count], name=f"{NAME}.Neg")
    negative.outputs[0].type, negative.outputs[0].shape = count.type, count.shape
    kept = ir.node("Slice", [hidden, negative.outputs[0], end, axis], name=f"{NAME}.Slice")
    value = kept.outputs[0]
    value.type = hidden.type
    if hidden.shape is not None:
        value.shape = ir.Shape([hidden.shape[0], None, hidden.shape[2]])
    model.graph.insert_before(head, [negative, kept])
    return value
