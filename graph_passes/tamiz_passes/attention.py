"""Recognises masked attention with rotary embedding and a KV cache as one tamiz.Attention."""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from tamiz.api import GraphEditor, GraphPass, Phase, remove_unused
from tamiz_passes.attention_inputs import joined_heads, shared_table
from tamiz_passes.attention_proof import Parameters, prove
from tamiz_passes.attention_region import Region, find_region
from tamiz_passes.fused_region import MICROSOFT, find_fused, is_fused
from tamiz_passes.positions import counted_positions
from tamiz_passes.probe import MASK_INPUT, POSITION_INPUT
from tamiz_passes.shapes import infer_shapes
from tamiz_passes.values import Refusal, name_in_scope


class RecogniseAttention(GraphPass):
    """Puts one tamiz.Attention for what lies between the q, k, v linears and the output linear.

    The mask, the rotary tables and the shape arithmetic that served only the old nodes go.
    """

    name = "attention"
    phase = Phase.RECOGNISE
    needs = frozenset({"rms-norm", "linears"})
    provides = frozenset({"attention"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        proved: dict[tuple[Hashable, ...], Parameters] = {}
        for node in list(model.graph):
            primitive = node.op_type == "Softmax" and node.domain == ""
            if node.graph is model.graph and (primitive or is_fused(node)):
                try:
                    region = find_region(node) if primitive else find_fused(node)
                    _rewrite(model, region, prove(model, region, proved))
                    modified = True
                except Refusal as refusal:
                    self.note(node, refusal.sentence)
            elif node.op_type in _OTHER_OPS and node.domain == MICROSOFT:
                self.note(node, f"{node.domain}.{node.op_type} is left as it is.")
        if modified:
            remove_unused(model)
            model.graph.sort()
            infer_shapes(model)  # what is known of the outputs of the new nodes
        return ir.passes.PassResult(model, modified=modified)


#: Attention that is one node already; it stays.
_OTHER_OPS = frozenset({"Attention", "DecoderMaskedMultiHeadAttention", "SparseAttention"})


def _rewrite(model: ir.Model, region: Region, parameters: Parameters) -> None:
    graph = GraphEditor(model)
    mask = graph.input(MASK_INPUT)
    if mask is None:
        raise Refusal(f"the graph has no input {MASK_INPUT}")
    positions = None if parameters.counted else graph.input(POSITION_INPUT)
    positions = positions or counted_positions(model, mask)
    frequency = parameters.chosen_frequency
    if frequency is None and parameters.inverse_frequency is not None:
        frequency = shared_table(graph, "inverse_frequency", parameters.inverse_frequency)
    at = region.output.producer()
    assert at is not None
    graph.replace(
        at,
        "Attention",
        {
            "q": joined_heads(graph, region.q),
            "k": None if region.k is None else joined_heads(graph, region.k),
            "v": None if region.v is None else joined_heads(graph, region.v),
            "past_key": region.keys.past,
            "past_value": None if region.values is None else region.values.past,
            "attention_mask": mask,
            "position_ids": positions,
            "inverse_frequency": frequency,
            "head_sink": _sinks(graph, region, parameters.num_heads),
            "query_weight": region.query_weight,
            "head_slope": _slopes(graph, parameters),
        },
        parameters.attributes(),
        region.results,
        name=name_in_scope(at, "Attention"),
    )


def _slopes(graph: GraphEditor, parameters: Parameters) -> ir.Value | None:
    if parameters.slopes is None:
        return None
    return shared_table(graph, "head_slope", parameters.slopes)


def _sinks(graph: GraphEditor, region: Region, heads: int) -> ir.Value | None:
    if region.sinks is None:
        return None
    return shared_table(graph, "head_sink", region.sinks.of_heads(heads))
