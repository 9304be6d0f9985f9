"""Makes constants of dimensions that are known, which graphs read from shapes as they run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import GraphEditor
from tamiz_passes.values import constant, producer


def fold_dimensions(model: ir.Model) -> bool:
    """Replaces Gather and Slice of a Shape by a constant where these dimensions are known.

    Returns:
        Whether it replaced any.
    """
    graph = GraphEditor(model)
    modified = False
    for node in list(model.graph):
        if node.domain != "" or node.op_type not in ("Gather", "Slice"):
            continue
        shape = producer(node.inputs[0], "Shape")
        if shape is None or shape.attributes or node.outputs[0].is_graph_output():
            continue
        found = _read(node, shape.inputs[0])
        if found is None:
            continue
        label = "dimension." + ".".join(map(str, [found.ndim, *found.reshape(-1).tolist()]))
        node.outputs[0].replace_all_uses_with(graph.constant(label, found))
        model.graph.remove(node, safe=True)
        modified = True
    return modified


def _read(node: ir.Node, value: ir.Value | None) -> np.ndarray | None:
    """The known dimensions of `value` that a node reads."""
    if value is None or value.shape is None:
        return None
    numbers = [constant(given) for given in node.inputs[1:]]
    if any(given is None for given in numbers):
        return None
    places = np.arange(len(value.shape))
    try:
        if node.op_type == "Gather":
            places = places[np.asarray(numbers[0])]
        else:
            begin, end, *rest = (np.asarray(given).reshape(-1) for given in numbers)
            step = int(rest[1][0]) if len(rest) > 1 else 1
            places = places[int(begin[0]) : int(end[0]) : step]
    except (IndexError, ValueError):
        return None
    dims = [value.shape[int(place)] for place in places.reshape(-1)]
    if not all(isinstance(dim, int) for dim in dims):
        return None
    return np.array(dims, np.int64).reshape(places.shape)
