"""Leaves products of `up` out where a ReLU of the gate makes 0 of them.

    h = f(gate) · up,    f = relu or relu²:    h_o = 0 where f(gate_o) = 0, whatever up_o is

So the mask of the zeros of h, which the second product of the block has, is known before `up` is
computed: it is the mask of f(gate), and also that of a norm of h (BitNet).
"""

from __future__ import annotations

import onnx_ir as ir

import tamiz_ops
from tamiz.api import (
    DOMAIN,
    GraphEditor,
    GraphPass,
    Phase,
    attribute_of,
    input_of,
)

_RELUS = ("relu", "relu2")
#: Inputs that a weight packed by output is padded to: other weights would become larger.
RECORD_INPUTS = 512


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
        if hidden is None or attribute_of(hidden, "activation") not in _RELUS:
            self.note(mask, "Its zeros are not those of a tamiz.SwiGLU with relu or relu2.")
            return False
        up = _operation(input_of(hidden, "up"), "BlockMatMul")
        if up is None or not _is_own(up.outputs[0]) or not _is_plain_int4(up):
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


def _is_plain_int4(product: ir.Node) -> bool:
    weight = input_of(product, "weight")
    if weight is None or weight.const_value is None or input_of(product, "mask") is not None:
        return False
    return bool(
        attribute_of(product, "bits") == 4 and attribute_of(product, "activation_bits") == 16
    )


def _skip(graph: GraphEditor, mask: ir.Node, hidden: ir.Node, up: ir.Node) -> None:
    """Lets the mask be that of f(gate), before `up`, whose product takes it."""
    name = up.name or "up"
    gate = input_of(hidden, "gate")
    activation = {"activation": attribute_of(hidden, "activation")}
    opened = graph.value(f"{name}.open", gate)
    graph.insert(hidden, f"{name}.open", "SwiGLU", {"gate": gate}, activation, [opened])
    graph.connect(mask, "x", opened)
    graph.model.graph.remove(mask)
    graph.model.graph.insert_before(hidden, mask)
    attributes = {key: attribute_of(up, key) for key in ("n", "k", "scale_bits")}
    weight = input_of(up, "weight")
    assert weight is not None
    inputs = {
        "x": input_of(up, "x"),
        "weight": _records(graph, weight, **attributes),
        "mask": mask.outputs[0],
        "bias": input_of(up, "bias"),
    }
    chosen = graph.replace(up, "ChosenMatMul", inputs, attributes)
    graph.model.graph.remove(chosen)
    graph.model.graph.insert_before(hidden, chosen)
    if not weight.uses() and weight.name is not None:
        del graph.model.graph.initializers[weight.name]


def _records(graph: GraphEditor, weight: ir.Value, n: int, k: int, scale_bits: int) -> ir.Value:
    """The weight, packed by output."""
    assert weight.const_value is not None
    stored = weight.const_value.numpy()
    if scale_bits == 8:
        packed = tamiz_ops.pack_records_in_units(*tamiz_ops.unpack_int4_in_units(stored, n, k))
    else:
        packed = tamiz_ops.pack_records(*tamiz_ops.unpack_int4(stored, n, k))
    return graph.constant((weight.name or "weight").replace(".int4", ".records"), packed)
