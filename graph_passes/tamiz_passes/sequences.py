"""Lets a run have tokens of several sequences, whose keys and values lie in pages of one cache.

The graph gets an input `sequences` (int64 ``[segments, 2 + pages]``) with no segments by default,
so a caller that does not know it sees no change. The op `Attention` describes it. All other nodes
work row by row.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, SEQUENCES, GraphEditor, GraphPass, Phase, input_of
from tamiz_passes.probe import POSITION_INPUT


class TakeSequences(GraphPass):
    """Connects the input with every Attention; needs positions that the caller gives."""

    name = "sequences"
    phase = Phase.FUSE
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        graph = GraphEditor(model)
        nodes = [n for n in model.graph if (n.domain, n.op_type) == (DOMAIN, "Attention")]
        sketching = [node for node in nodes if input_of(node, "past_sketch") is not None]
        if not nodes or sketching or graph.input(POSITION_INPUT) is None:
            return ir.passes.PassResult(model, modified=False)
        sequences = graph.constant(SEQUENCES, np.zeros((0, 2), np.int64))
        sequences.shape = ir.Shape(["segments", "columns"])
        model.graph.inputs.append(sequences)
        for node in nodes:
            graph.connect(node, "sequences", sequences)
        return ir.passes.PassResult(model, modified=True)
