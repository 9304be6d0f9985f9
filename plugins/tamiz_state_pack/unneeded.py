"""Leaves products of `up` out where a ReLU of the gate makes 0 of them.

    h = f(gate) · up,    f = relu or relu²:    h_o = 0 where f(gate_o) = 0, whatever up_o is

So the mask of the zeros of h, which the second product of the block has, is known before `up` is
computed: it is the mask of f(gate), and also that of a norm of h (BitNet).
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor, GraphPass, Phase, attribute_of, input_of
from tamiz_state_pack.chosen import RECORD_INPUTS, RELUS, choose_outputs, is_plain_int4


class SkipUnneeded(GraphPass):
    """Computes of `up` what the mask of zeros keeps, and makes that mask of the gate."""

    name = "skip-unneeded"
    phase = Phase.FUSE
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        masks = [n for n in model.graph if (n.domain, n.op_type) == (DOMAIN, "ZeroMask")]
        modified = [self._rewrite(model, mask) for mask in masks]
        return ir.passes.PassResult(model, modified=any(modified))

    def _rewrite(self, model: ir.Model, mask: ir.Node) -> bool:
        """Rewrites the block of one mask; whether it did."""
        exact = attribute_of(mask, "block") == 1 and attribute_of(mask, "epsilon") == 0
        if not exact or input_of(mask, "candidates") is not None:
            self.note(mask, "Its mask is not that of all zeros alone.")
            return False
        hidden = _operation(input_of(mask, "x"), "SwiGLU", "RMSNorm")
        if hidden is not None and hidden.op_type == "RMSNorm":
            hidden = _operation(input_of(hidden, "x"), "SwiGLU")
        if hidden is None or attribute_of(hidden, "activation") not in RELUS:
            self.note(mask, "Its zeros are not those of a tamiz.SwiGLU with relu or relu2.")
            return False
        up = _operation(input_of(hidden, "up"), "BlockMatMul")
        if up is None or not _is_own(up.outputs[0]) or not is_plain_int4(up):
            self.note(mask, "Its block has no up of int4 that nothing else uses.")
            return False
        if attribute_of(up, "k") % RECORD_INPUTS:
            self.note(up, f"Its inputs are no multiple of {RECORD_INPUTS}, which records are.")
            return False
        _skip(GraphEditor(model), mask, hidden, up)
        return True


def _operation(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The op of the domain that computes a value, if it is one of these."""
    node = None if value is None else value.producer()
    return node if node is not None and node.domain == DOMAIN and node.op_type in op_types else None


def _is_own(value: ir.Value) -> bool:
    """Whether one node alone uses a value."""
    return len(value.consumers()) == 1 and not value.is_graph_output()


def _skip(graph: GraphEditor, mask: ir.Node, hidden: ir.Node, up: ir.Node) -> None:
    """Lets the mask be that of f(gate), before `up`, whose product takes it."""
    name = up.name or "up"
    gate = input_of(hidden, "gate")
    activation = {"activation": attribute_of(hidden, "activation")}
    opened = graph.value(f"{name}.open", gate)
    graph.insert(hidden, f"{name}.open", "SwiGLU", {"gate": gate}, activation, [opened])
    graph.connect(mask, "x", opened)
    chosen = choose_outputs(graph, up, mask.outputs[0])
    for node in (mask, chosen):
        graph.model.graph.remove(node)
        graph.model.graph.insert_before(hidden, node)
