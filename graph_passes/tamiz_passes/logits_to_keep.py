"""Lets the caller say for how many positions the head is computed.

    logits = W · h            becomes      logits = W · LastPositions(h, k)

k is a graph input `logits_to_keep` (int64 ``[1]``) with the default 0, all positions, so a caller
that does not know it sees no change. Reading a prompt needs the last position's logits only, and
onnxruntime computes outputs that nobody fetches all the same.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import (
    GraphEditor,
    GraphPass,
    Phase,
    constant_weight,
    is_constant,
    stored_format,
)
from tamiz_passes.values import operands, rank, shown

NAME = "logits_to_keep"
#: What may stand between the head and the logits: a bias, a soft cap, a cast.
_AFTER_HEAD = ("Add", "Cast", "Div", "Mul", "Tanh")


class LogitsToKeep(GraphPass):
    """Puts a `LastPositions` before the head."""

    name = "logits-to-keep"
    phase = Phase.RECOGNISE
    needs = frozenset({"residual"})  # the last pass that moves nodes near the head
    provides = frozenset({"logits-to-keep"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        graph = model.graph
        logits = next((value for value in graph.outputs if value.name == "logits"), None)
        if logits is None or any(value.name == NAME for value in graph.inputs):
            return ir.passes.PassResult(model, modified=False)
        node = _behind(logits)
        hidden = node.inputs[0] if node is not None else None
        if node is None or hidden is None or not _is_head(node):
            self.note(logits.producer() or graph[-1], "logits come from no MatMul with a constant")
            return ir.passes.PassResult(model, modified=False)
        if logits.shape is None or len(logits.shape) != 3:
            self.note(node, f"logits have shape {logits.shape}, expected rank 3")
            return ir.passes.PassResult(model, modified=False)
        if hidden.dtype != ir.DataType.FLOAT:
            found = "an unknown type" if hidden.dtype is None else hidden.dtype.name
            self.note(node, f"The head works on {found}, expected FLOAT.")
            return ir.passes.PassResult(model, modified=False)
        if rank(hidden) != 3:
            self.note(node, f"The head's input is {shown(hidden)}, expected rank 3.")
            return ir.passes.PassResult(model, modified=False)
        node.replace_input_with(0, _last(GraphEditor(model), node, hidden))
        return ir.passes.PassResult(model, modified=True)


def _behind(logits: ir.Value) -> ir.Node | None:
    """The node that computes the logits, but for elementwise ops with constants for each token.

    None where a position of the logits may depend on others, or where more than the logits needs
    what the node computes.
    """
    value, node = logits, logits.producer()
    while node is not None and node.op_type in _AFTER_HEAD and node.domain == "":
        computed = [v for v in operands(node) if not is_constant(v)]
        constants = [v.shape for v in operands(node) if is_constant(v)]
        for_all = all(s is not None and all(d == 1 for d in list(s)[:-1]) for s in constants)
        if len(computed) != 1 or not for_all:
            return None
        value, node = computed[0], computed[0].producer()
        if len(value.uses()) != 1 or value.is_graph_output():
            return None
    return node


def _is_head(node: ir.Node) -> bool:
    matmul = node.op_type == "MatMul" and node.domain == ""
    if not matmul and stored_format(node) is None:
        return False
    return constant_weight(node.inputs[1]) is not None


def _last(graph: GraphEditor, head: ir.Node, hidden: ir.Value) -> ir.Value:
    """Adds the graph input, and in front of `head` what obeys it."""
    count = graph.constant(NAME, np.zeros(1, np.int64))
    graph.model.graph.inputs.append(count)
    return last_positions(graph, head, NAME, hidden, count)


def last_positions(
    graph: GraphEditor, before: ir.Node, name: str, hidden: ir.Value, count: ir.Value
) -> ir.Value:
    """Inserts a `LastPositions` before a node.

    Args:
        graph: The graph to change.
        before: The node that reads the result.
        name: Of the new node.
        hidden: ``[batch, positions, size]``.
        count: How many of the last positions are kept, ``[1]``; 0 for all.

    Returns:
        The last positions of `hidden`.
    """
    value = ir.Value(name=f"{name}.hidden", type=hidden.type)
    shorten(value, hidden.shape)
    graph.insert(before, name, "LastPositions", {"x": hidden, "count": count}, {}, [value])
    return value


def shorten(value: ir.Value, shape: ir.Shape | None) -> None:
    """Gives a value a shape ``[batch, positions, …]`` with an unknown number of positions."""
    if shape is not None:
        value.shape = ir.Shape([shape[0], None, *shape[2:]])
