"""Computes at build time what a graph computes from constants, with ONNX Runtime itself.

ONNX Runtime folds at the opset of the model, so the constants are those of a run. Other
implementations differ from it in some ops (Resize and MaxUnpool do), or write newer opsets.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import onnx_ir as ir

from tamiz.api import draws, graphs_in, is_constant
from tamiz_passes.values import operands

#: Elements of the largest constant that is read or made (a norm's 1 + w); weights stay in the
#: mapped file, and a matrix is a weight from fewer elements on.
_LIMIT, _MATRIX = 1 << 16, 1024
#: Ops that ONNX Runtime fuses with their neighbours, so they are worth keeping.
_KEPT = frozenset({"Constant", "DequantizeLinear", "QuantizeLinear"})
_NOT_NUMBERS = (ir.DataType.STRING, ir.DataType.UNDEFINED)


def lift_constants(graph: ir.Graph) -> None:
    """Makes initializers of the Constant nodes of the main graph that hold numbers."""
    for node in list(graph):
        if (node.domain, node.op_type) != ("", "Constant") or node.outputs[0].is_graph_output():
            continue
        tensor = _tensor_of(node)
        if tensor is not None and tensor.dtype not in _NOT_NUMBERS:
            _put(graph, node, [tensor])


def fold_constants(model: ir.Model) -> bool:
    """Replaces nodes of the main graph that read small constants only by what they compute.

    Returns:
        Whether it replaced any.
    """
    found = _foldable(model.graph)
    if not found:
        return False
    inside = {value for node in found for value in node.outputs}
    made = [v for v in inside if v.name and any(n not in found for n in v.consumers())]
    results = _run(model, found, made)
    if results is None:
        return False
    graph = model.graph
    for value, array in zip(made, results, strict=True):
        _register(graph, value, ir.tensor(np.asarray(array), value.dtype))
    for node in reversed(found):
        graph.remove(node, safe=True)
    return True


def _foldable(graph: ir.Graph) -> dict[ir.Node, None]:
    """The nodes to fold, in order."""
    found: dict[ir.Node, None] = {}
    for node in graph:
        if node.domain != "" or node.op_type in _KEPT or draws(node) or any(graphs_in(node)):
            continue
        if not node.inputs or not all(map(_is_small_result, node.outputs)):
            continue
        if all(_is_small(v) or v.producer() in found for v in operands(node)):
            found[node] = None
    return found


def _is_small(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None or not is_constant(value) or tensor.dtype in _NOT_NUMBERS:
        return False
    return tensor.size <= (_MATRIX if len(tensor.shape) > 1 else _LIMIT)


def _is_small_result(value: ir.Value) -> bool:
    if not value.name:
        return True
    if value.is_graph_output() or not isinstance(value.type, ir.TensorType):
        return False
    shape = value.shape
    if value.dtype in (None, *_NOT_NUMBERS) or shape is None:
        return False
    return all(isinstance(dim, int) for dim in shape) and math.prod(shape.numpy()) <= _LIMIT


def _run(
    model: ir.Model, nodes: Iterable[ir.Node], outputs: Iterable[ir.Value]
) -> list[np.ndarray] | None:
    """What ONNX Runtime computes; None where it does not run these nodes."""
    import onnx
    import onnxruntime as ort

    read = {v: None for node in nodes for v in operands(node) if v.producer() is None}
    graph = onnx.GraphProto(name="constants")
    graph.node.extend(ir.to_proto(node) for node in nodes)
    for value in read:
        assert value.const_value is not None
        tensor = ir.to_proto(value.const_value)
        tensor.name = value.name or ""
        graph.initializer.append(tensor)
    graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in outputs)
    proto = onnx.ModelProto(ir_version=model.ir_version, graph=graph)
    proto.opset_import.add(domain="", version=model.graph.opset_imports[""])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(proto.SerializeToString(), options)
        results: list[np.ndarray] = session.run(None, {})
    except Exception:  # a class of its own for every status; the model itself does not run either
        return None
    return results


def _tensor_of(node: ir.Node) -> ir.TensorProtocol | None:
    """The numbers of a Constant node."""
    if len(node.attributes) != 1:
        return None
    ((name, attribute),) = node.attributes.items()
    if name == "value":
        return attribute.as_tensor()
    if name.startswith("value_float"):
        return ir.tensor(np.asarray(attribute.value, np.float32))
    if name.startswith("value_int"):
        return ir.tensor(np.asarray(attribute.value, np.int64))
    return None


def _put(graph: ir.Graph, node: ir.Node, tensors: Iterable[ir.TensorProtocol]) -> None:
    """Puts constants in place of the outputs of a node."""
    for value, tensor in zip(node.outputs, tensors, strict=True):
        _register(graph, value, tensor)
    graph.remove(node, safe=True)


def _register(graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> None:
    """A constant under the name of a value, which it replaces."""
    constant = ir.Value(
        name=value.name,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
        const_value=tensor,
        metadata_props=value.metadata_props.copy(),
    )
    tensor.name = value.name
    graph.register_initializer(constant)
    value.replace_all_uses_with(constant)
