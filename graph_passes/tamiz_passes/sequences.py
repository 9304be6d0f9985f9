"""Lets a run have tokens of several sequences, whose keys and values lie in pages of one cache.

The graph gets an input `sequences` (int64 ``[segments, 2 + pages]``) with no segments by default,
so a caller that does not know it sees no change. The op `Attention` describes it; what chooses
outputs in decode steps takes it, too, and so do `ShortConv`, `GatedDeltaNet`, `Mamba2` and
`SelectiveScan`. Where there are segments, the last three also need the input `slots` (int64
``[segments]``), which is connected where there is such a node. All other nodes work row by row.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import SEQUENCES, SLOTS, GraphEditor, GraphPass, Phase, has_input
from tamiz_passes.probe import POSITION_INPUT


class TakeSequences(GraphPass):
    """Connects the input with all that takes it; needs positions that the caller gives."""

    name = "sequences"
    phase = Phase.FUSE
    needs = frozenset({"short-conv"})
    provides = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        graph = GraphEditor(model)
        nodes = [node for node in model.graph if has_input(node, "sequences")]
        mixes = any(node.op_type == "Attention" or has_input(node, "slots") for node in nodes)
        if not mixes or graph.input(POSITION_INPUT) is None:
            return ir.passes.PassResult(model, modified=False)
        sequences = graph.constant(SEQUENCES, np.zeros((0, 2), np.int64))
        sequences.shape = ir.Shape(["segments", "columns"])
        model.graph.inputs.append(sequences)
        for node in nodes:
            graph.connect(node, "sequences", sequences)
        in_slots = [node for node in nodes if has_input(node, "slots")]
        if in_slots:
            slots = graph.constant(SLOTS, np.zeros(0, np.int64))
            slots.shape = ir.Shape(["segments"])
            model.graph.inputs.append(slots)
            for node in in_slots:
                graph.connect(node, "slots", slots)
        return ir.passes.PassResult(model, modified=True)
