"""Recognises masked attention with rotary embedding and a KV cache as one tamiz.Attention."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from tamiz.api import GraphEditor, GraphPass, Phase, remove_unused
from tamiz_passes.attention_proof import Parameters, prove
from tamiz_passes.attention_region import Region, find_region
from tamiz_passes.positions import counted_positions
from tamiz_passes.probe import MASK_INPUT, POSITION_INPUT
from tamiz_passes.shapes import infer_shapes
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
            remove_unused(model)
            model.graph.sort()
            infer_shapes(model)  # what is known of the outputs of the new nodes
        return ir.passes.PassResult(model, modified=modified)


#: Attention that is one node already; it stays.
_OTHER_OPS = frozenset(
    {"Attention", "MultiHeadAttention", "GroupQueryAttention", "DecoderMaskedMultiHeadAttention"}
)


def _rewrite(model: ir.Model, region: Region, parameters: Parameters) -> None:
    graph = GraphEditor(model)
    mask = graph.input(MASK_INPUT)
    assert mask is not None  # without it, the mask would not have been proved
    positions = graph.input(POSITION_INPUT) or counted_positions(model, mask)
    frequency = parameters.chosen_frequency
    if frequency is None and parameters.inverse_frequency is not None:
        frequency = _table(graph, parameters.inverse_frequency)
    at = region.output.producer()
    assert at is not None
    graph.replace(
        at,
        "Attention",
        {
            "q": _joined(graph, region.q),
            "k": _joined(graph, region.k),
            "v": _joined(graph, region.v),
            "past_key": region.keys.past,
            "past_value": region.values.past,
            "attention_mask": mask,
            "position_ids": positions,
            "inverse_frequency": frequency,
        },
        parameters.attributes(),
        [region.output, region.keys.present, region.values.present],
        name=name_in_scope(at, "Attention"),
    )


def _joined(graph: GraphEditor, value: ir.Value) -> ir.Value:
    """`value` as ``[B, S, H·D]``; a norm of split heads becomes one that works on joined heads."""
    if rank(value) == 3:
        return value
    norm = value.producer()
    assert norm is not None
    split = producer(norm.inputs[0], "Reshape")
    assert split is not None
    joined = operands(split)[0]
    inputs, output = [joined, norm.inputs[1]], graph.value(f"{value.name}.joined", joined)
    epsilon = {"epsilon": norm.attributes["epsilon"].as_float()}
    graph.insert(norm, norm.name or "", "RMSNorm", inputs, epsilon, [output], after=True)
    return output


def _table(graph: GraphEditor, frequency: np.ndarray) -> ir.Value:
    """The constant of these frequencies, shared by the layers that have the same."""
    count = 0
    while True:
        name = "inverse_frequency" + (f".{count}" if count else "")
        value = graph.constant(name, frequency)
        existing = constant(value)
        if existing is not None and np.array_equal(existing, frequency):
            return value
        count += 1
