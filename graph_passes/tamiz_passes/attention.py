"""Recognises masked attention with rotary embedding and a KV cache as one tamiz.Attention."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common

from tamiz.api import DOMAIN, GraphPass, Phase, add_initializer, replace
from tamiz_passes.attention_proof import Parameters, prove
from tamiz_passes.attention_region import Region, find_region
from tamiz_passes.positions import counted_positions
from tamiz_passes.probe import MASK_INPUT, POSITION_INPUT
from tamiz_passes.values import Refusal, constant, name_in_scope, operands, producer, rank


class RecogniseAttention(GraphPass):
    """Puts one tamiz.Attention for what lies between the q, k, v linears and the output linear.

    The mask, the rotary tables and the shape arithmetic that served only the old nodes go.
    """

    name = "attention"
    phase = Phase.RECOGNISE
    needs = frozenset({"rms-norm"})
    provides = frozenset({"attention"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        proved: dict[tuple[Hashable, ...], Parameters] = {}
        for node in list(model.graph):
            if node.op_type == "Softmax" and node.domain == "" and node.graph is model.graph:
                try:
                    region = find_region(node)
                    _rewrite(model, region, prove(model, region, proved))
                    modified = True
                except Refusal as refusal:
                    reason = str(refusal)
                    self.note(node, f"{reason[0].upper()}{reason[1:]}.")
            elif node.op_type in _OTHER_OPS and node.domain != "tamiz":
                self.note(node, f"{node.domain or 'onnx'}.{node.op_type} is left as it is.")
        if modified:
            common.RemoveUnusedNodesPass()(model)
            model.graph.sort()
        return ir.passes.PassResult(model, modified=modified)


#: Attention that is one node already; it stays.
_OTHER_OPS = frozenset(
    {"Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention"}
)


def _rewrite(model: ir.Model, region: Region, parameters: Parameters) -> None:
    graph_inputs = {v.name: v for v in model.graph.inputs}
    mask = graph_inputs[MASK_INPUT]  # without it, the mask would not have been proved
    positions = graph_inputs.get(POSITION_INPUT) or counted_positions(model, mask)
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
            mask,
            positions,
            frequency,
        ],
        parameters.attributes(),
        name=name_in_scope(at, "Attention"),
    )


def _joined(model: ir.Model, value: ir.Value) -> ir.Value:
    """`value` as ``[B, S, H·D]``; a norm of split heads becomes one that works on joined heads."""
    if rank(value) == 3:
        return value
    norm = value.producer()
    assert norm is not None
    split = producer(norm.inputs[0], "Reshape")
    assert split is not None
    joined = operands(split)[0]
    node = ir.node(
        "RMSNorm",
        [joined, norm.inputs[1]],
        {"epsilon": norm.attributes["epsilon"].as_float()},
        domain=DOMAIN,
        name=norm.name,
    )
    output = node.outputs[0]
    output.name, output.type, output.shape = f"{value.name}.joined", joined.type, joined.shape
    model.graph.insert_after(norm, node)
    return output


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
