"""Recognises masked attention with rotary embedding and a KV cache as one tamiz.Attention."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.graph import GraphPass, Phase, add_initializer, replace
from tamiz_passes.attention_proof import Parameters, prove
from tamiz_passes.attention_region import Region, find_region, width
from tamiz_passes.probe import MASK_INPUT, POSITION_INPUT
from tamiz_passes.values import Refusal, constant, name_in_scope, rank


class RecogniseAttention(GraphPass):
    """Puts one tamiz.Attention for what lies between the q, k, v linears and the output linear.

    The mask, the rotary tables and the shape arithmetic that served only the old nodes go.
    """

    name = "attention"
    phase = Phase.RECOGNISE
    order = 30

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        for node in list(model.graph):
            if node.op_type == "Softmax" and node.domain == "" and node.graph is model.graph:
                try:
                    region = find_region(node)
                    _rewrite(model, node, region, prove(model, region))
                    modified = True
                except Refusal as refusal:
                    reason = str(refusal)
                    self.note(node, f"{reason[0].upper()}{reason[1:]}.")
            elif node.op_type in _OTHER_OPS and node.domain != "tamiz":
                self.note(node, f"{node.domain or 'onnx'}.{node.op_type} is left as it is.")
        if modified:
            model.graph.sort()
        return ir.passes.PassResult(model, modified=modified)


#: Attention that is one node already; it stays.
_OTHER_OPS = frozenset(
    {"Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention"}
)


def _rewrite(model: ir.Model, softmax: ir.Node, region: Region, parameters: Parameters) -> None:
    graph_inputs = {v.name: v for v in model.graph.inputs}
    for name in (MASK_INPUT, POSITION_INPUT):
        if name not in graph_inputs:
            raise Refusal(f"the graph has no input {name}, which tamiz.Attention needs")
    frequency = None
    if parameters.inverse_frequency is not None:
        frequency = _table(model, parameters.inverse_frequency)
    at = region.output.producer()
    assert at is not None
    replace(
        model,
        at,
        [region.output, region.keys.present, region.values.present],
        "Attention",
        [
            *(_joined(model, v) for v in (region.q, region.k, region.v)),
            region.keys.past,
            region.values.past,
            graph_inputs[MASK_INPUT],
            graph_inputs[POSITION_INPUT],
            frequency,
        ],
        parameters.attributes(),
        name=name_in_scope(at, "Attention"),
    )


def _joined(model: ir.Model, value: ir.Value) -> ir.Value:
    """`value` as ``[B, S, H·D]``; heads that a norm left apart are joined by a Reshape."""
    if rank(value) == 3:
        return value
    node = value.producer()
    assert node is not None
    assert value.shape is not None
    shape = add_initializer(model, "constant.join_heads", np.array([0, 0, -1], np.int64))
    reshape = ir.node("Reshape", [value, shape], name=name_in_scope(node, "JoinHeads"))
    joined = reshape.outputs[0]
    joined.name, joined.type = f"{value.name}.joined", value.type
    joined.shape = ir.Shape([*value.shape[:2], width(value)])
    model.graph.insert_after(node, reshape)
    return joined


def _table(model: ir.Model, frequency: np.ndarray) -> ir.Value:
    """The constant of these frequencies, shared by the layers that have the same."""
    count = 0
    while True:
        name = "inverse_frequency" + (f".{count}" if count else "")
        value = add_initializer(model, name, frequency)
        existing = constant(value)
        if existing is not None and np.array_equal(existing, frequency):
            return value
        count += 1
