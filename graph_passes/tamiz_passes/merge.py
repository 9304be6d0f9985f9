"""Removes nodes that say nothing new: Identities, and nodes that compute what another one does."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from tamiz.api import draws, graphs_in

#: Elements of the largest attribute that is compared.
_SMALL = 10


def remove_identities(graph: ir.Graph) -> None:
    """Removes the nodes of the main graph that hand on their input and carry no name that stays.

    Those are Identity, Cast to the type that a value has, Dropout outside of training, and Concat
    of one value.

    One that makes an output of the graph goes only where what it reads can take the output's name:
    not an input, a constant or another output.
    """
    for node in list(graph):
        x, y = (node.inputs or (None,))[0], node.outputs[0]
        if x is None or not _hands_on(node, x):
            continue
        if y.is_graph_output():
            before = x.producer()
            if before is None or before.graph is not graph or x.is_graph_output():
                continue
            y.replace_all_uses_with(x, replace_graph_outputs=True)
            graph.remove(node, safe=True)
            x.name, x.type, x.shape = y.name, y.type, y.shape
        else:
            x.type = x.type or y.type
            x.shape = y.shape if x.shape is None else x.shape  # that of a scalar is empty
            y.replace_all_uses_with(x)
            graph.remove(node, safe=True)


def _hands_on(node: ir.Node, x: ir.Value) -> bool:
    """Whether the first output of a node is its first input `x`."""
    if node.domain != "":
        return False
    if node.op_type == "Cast":
        return x.dtype is not None and x.dtype == node.attributes["to"].as_int()
    if node.op_type == "Dropout":
        masks = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
        return not masks and "is_test" not in node.attributes and not draws(node)
    return node.op_type == "Identity" or (node.op_type == "Concat" and len(node.inputs) == 1)


def merge_equal_nodes(graph: ir.Graph) -> None:
    """Lets one node of the main graph serve for all that compute the same.

    Nodes that draw random numbers compute nothing that another one does, nor do nodes of unknown
    domains. A node that makes an output of the graph stays.
    """
    first: dict[Hashable, ir.Node] = {}
    for node in list(graph):
        if node.domain != "" or draws(node) or any(graphs_in(node)):
            continue
        key = _key(node)
        if key is None:
            continue
        other = first.setdefault(key, node)
        if other is not node and not any(v.is_graph_output() for v in node.outputs):
            for value, same in zip(node.outputs, other.outputs, strict=True):
                value.replace_all_uses_with(same)
            graph.remove(node, safe=True)


def _key(node: ir.Node) -> Hashable | None:
    """What two nodes have in common that compute the same; None where that is not known."""
    attributes = []
    for name, attribute in node.attributes.items():
        value = attribute.value
        if attribute.is_ref():
            return None
        if attribute.type == ir.AttributeType.TENSOR:
            if value.size > _SMALL or value.dtype == ir.DataType.STRING:
                return None
            value = (value.dtype, tuple(value.shape.numpy()), value.tobytes())
        elif attribute.type in (ir.AttributeType.FLOAT, ir.AttributeType.FLOATS):
            value = np.asarray(value, np.float64).tobytes()  # -0.0 is not 0.0
        elif attribute.type in (ir.AttributeType.INTS, ir.AttributeType.STRINGS):
            value = tuple(value)
        elif attribute.type not in (ir.AttributeType.INT, ir.AttributeType.STRING):
            return None
        attributes.append((name, attribute.type, value))
    given = tuple(bool(value.name) for value in node.outputs)
    return node.op_type, tuple(map(id, node.inputs)), given, tuple(sorted(attributes))
