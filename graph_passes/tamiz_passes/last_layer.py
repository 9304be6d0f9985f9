"""Lets the last layer compute only the positions that the head needs.

    LastPositions(f(a, b), k)      becomes      f(LastPositions(a, k), LastPositions(b, k))

f is what works on each position alone: products, norms and the gated feed-forward. So behind its
attention the last layer reads a prompt of any length at the price of one position. Nodes that a
technique gave a mask or a state of their own stay as they are.
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor, GraphPass, Phase, input_of
from tamiz_passes.logits_to_keep import last_positions, shorten
from tamiz_passes.values import operands

#: Ops that work on each position alone, and their inputs that have positions.
_BY_POSITION = {
    "BlockMatMul": ("x",),
    "RMSNorm": ("x", "residual"),
    "LayerNorm": ("x", "residual"),
    "Sum": ("x", "residual"),
    "SwiGLU": ("gate", "up"),
    "Scale": ("x", "factors"),
    "ExpertRouter": ("x",),
    "ExpertMatMul": ("x", "chosen"),
    "ExpertSum": ("x", "weights", "shared", "share"),
}


class LastLayer(GraphPass):
    """Moves `LastPositions` before the ops of the last layer that work on each position alone."""

    name = "last-layer"
    phase = Phase.FUSE
    needs = frozenset({"sums"})
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        last = next((n for n in model.graph if _is(n, "LastPositions")), None)
        if last is None:
            return ir.passes.PassResult(model, modified=False)
        moved = _only_for(last, model.graph)
        if moved:
            _move(GraphEditor(model), last, moved)
            model.graph.remove(last, safe=True)
            model.graph.sort()
        return ir.passes.PassResult(model, modified=bool(moved))


def _is(node: ir.Node, *op_types: str) -> bool:
    return node.domain == DOMAIN and node.op_type in op_types


def _only_for(last: ir.Node, graph: ir.Graph) -> list[ir.Node]:
    """The nodes that work on each position alone and whose outputs only `last` needs."""
    found = {last: None}
    for node in reversed(graph):
        read = [value for value in node.outputs if value.uses()]
        needed = {consumer for value in read for consumer in value.consumers()}
        fixed = any(value.is_graph_output() for value in node.outputs)
        masked = _is(node, "BlockMatMul") and input_of(node, "mask") is not None
        if _is(node, *_BY_POSITION) and needed and needed <= found.keys() and not fixed | masked:
            found[node] = None
    return list(found)[1:]


def _move(graph: GraphEditor, last: ir.Node, moved: list[ir.Node]) -> None:
    hidden, count = operands(last)
    outputs = [value for node in moved for value in node.outputs]
    inside = [
        value
        for node in moved
        for name in _BY_POSITION[node.op_type]
        if (value := input_of(node, name)) is not None
    ]
    for number, value in enumerate(v for v in dict.fromkeys(inside) if v not in outputs):
        uses = [use for use in value.uses() if use.node in moved]
        narrow = last_positions(graph, uses[0].node, f"{last.name}.{number}", value, count)
        for node, index in uses:
            node.replace_input_with(index, narrow)
    for value in outputs:
        shorten(value, value.shape)
    for node, index in list(last.outputs[0].uses()):
        node.replace_input_with(index, hidden)
