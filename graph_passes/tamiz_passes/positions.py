"""Positions for a decoder whose graph has no input position_ids and counts them itself.

position = P + i for the i-th new token after P cached ones, padding or not. P + S is the length of
attention_mask, so that this also holds where past is a buffer longer than P.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import GraphEditor
from tamiz_passes.values import Refusal

_NAME = "counted_position_ids"


def counted_positions(model: ir.Model, mask: ir.Value) -> ir.Value:
    """The positions ``[B, S]``, int64, computed once for all layers.

    Raises:
        Refusal: If the graph has no input_ids ``[B, S]`` to count.
    """
    for node in model.graph:
        if node.name == _NAME:
            return node.outputs[0]
    ids = next((v for v in model.graph.inputs if v.name == "input_ids"), None)
    if ids is None:
        raise Refusal("the graph has neither an input position_ids nor input_ids to count")
    nodes: list[ir.Node] = []

    def op(op_type: str, *inputs: ir.Value, **attributes: int) -> ir.Value:
        name = f"{_NAME}.{len(nodes)}"
        nodes.append(ir.node(op_type, inputs, attributes, name=name))
        output = nodes[-1].outputs[0]
        output.name, output.type = name, ir.TensorType(ir.DataType.INT64)
        return output

    one = GraphEditor(model).constant(f"{_NAME}.one", np.array(1, np.int64))
    end = op("Squeeze", op("Shape", mask, start=1, end=2))
    length = op("Squeeze", op("Shape", ids, start=1, end=2))
    counted = op("Range", op("Sub", end, length), end, one)
    positions = op("Expand", counted, op("Shape", ids))
    positions.name, positions.shape = _NAME, ids.shape
    nodes[-1].name = _NAME
    model.graph.insert_before(model.graph[0], nodes)
    return positions
