"""Graphs that compute in float16 or bfloat16, widened to float32.

ONNX Runtime's CPU kernels of most ops compute in float32 and round to 16 bits after each. Without
the roundings no value is farther from what the model means, and caches are what tamiz.Attention
takes. So tables of rotary cosines and sines are computed anew. A model that is no decoder keeps the
types of its inputs and outputs, by casts at the edges.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import is_constant, rotary_frequencies, rotary_tables
from tamiz_exporters.merged_decoder import is_decoder

_WIDE = ir.DataType.FLOAT
_HALVES = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
#: Attributes that name a type of numbers.
_TYPES = ("to", "dtype", "output_dtype", "softmax_precision")


def computes_in_halves(model: ir.Model) -> bool:
    """Whether a value of the graph, or of one in it, is of 16 bits."""
    graphs = [model.graph, *model.graph.subgraphs()]
    return any(_is_half(value) for graph in graphs for value in _values(graph))


def widen(model: ir.Model) -> None:
    """Lets a graph without functions compute in float32 where it computes in 16 bits."""
    graphs = [model.graph, *model.graph.subgraphs()]
    for graph in graphs:
        for node in graph:
            _compute_tables(node)
    decoder = is_decoder(model)
    if not decoder:
        _cast_edges(model.graph)
    kept = () if decoder else (*model.graph.inputs, *model.graph.outputs)
    edges = {id(value) for value in kept}
    casts = {
        id(node)
        for value in kept
        for node in (*value.consumers(), value.producer())
        if node is not None and _EDGE in node.metadata_props
    }
    for graph in graphs:
        for value in _values(graph):
            if _is_half(value) and id(value) not in edges:
                _widen_value(value)
        for node in graph:
            if id(node) not in casts:
                _widen_attributes(node)
            node.metadata_props.pop(_EDGE, None)


#: Inputs that are tables of cosines and sines.
_TABLES = {
    ("com.microsoft", "GroupQueryAttention"): (7, 8),
    ("com.microsoft", "RotaryEmbedding"): (2, 3),
    ("", "RotaryEmbedding"): (1, 2),
}


def _compute_tables(node: ir.Node) -> None:
    """Computes cosines and sines of positions anew, from the frequencies that they show."""
    numbers = _TABLES.get((node.domain, node.op_type), ())
    given = [node.inputs[number] for number in numbers if number < len(node.inputs)]
    constants = [value for value in given if value is not None and _is_half_constant(value)]
    if len(constants) != 2:
        return
    rounded = [value.const_value.numpy() for value in constants if value.const_value is not None]
    try:
        frequency, factor = rotary_frequencies(rounded[0], rounded[1])
    except ValueError:  # of another kind: what is rounded stays
        return
    tables = rotary_tables(frequency, len(rounded[0]), factor)
    for value, table in zip(constants, tables, strict=True):
        value.const_value = ir.Tensor(table, name=value.name)
        value.type = ir.TensorType(_WIDE)


def _is_half_constant(value: ir.Value) -> bool:
    return is_constant(value) and _is_half(value)


_EDGE = "edge"


def _values(graph: ir.Graph) -> list[ir.Value]:
    outputs = [value for node in graph for value in node.outputs]
    return [*graph.inputs, *graph.initializers.values(), *outputs]


def _is_half(value: ir.Value) -> bool:
    return value.dtype in _HALVES


def _widen_value(value: ir.Value) -> None:
    tensor = value.const_value
    if isinstance(value.type, ir.TensorType):
        value.type = ir.TensorType(_WIDE)
    elif isinstance(value.type, (ir.SequenceType, ir.OptionalType)):
        value.type = type(value.type)(ir.TensorType(_WIDE))
    if tensor is not None and tensor.dtype in _HALVES:
        value.const_value = _wide(tensor)


def _wide(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    def read() -> ir.TensorProtocol:
        return ir.Tensor(np.asarray(tensor.numpy(), np.float32), name=tensor.name)

    return ir.LazyTensor(read, _WIDE, ir.Shape(tensor.shape.numpy()), name=tensor.name)


def _widen_attributes(node: ir.Node) -> None:
    for name, attribute in list(node.attributes.items()):
        if attribute.type == ir.AttributeType.TENSOR:
            tensor = attribute.as_tensor()
            if tensor.dtype in _HALVES:
                node.attributes[name] = ir.AttrTensor(
                    name, ir.Tensor(np.asarray(tensor.numpy(), np.float32))
                )
        elif name in _TYPES and attribute.value in [int(half) for half in _HALVES]:
            node.attributes[name] = ir.AttrInt64(name, int(_WIDE))


def _cast_edges(graph: ir.Graph) -> None:
    """Puts a Cast after every input of 16 bits, and before every such output."""
    for value in graph.inputs:
        if not _is_half(value) or value.is_initializer():
            continue
        cast = _cast(f"{value.name}.wide", value, _WIDE)
        value.replace_all_uses_with(cast.outputs[0])
        cast.replace_input_with(0, value)
        graph.insert_before(graph[0], cast)
    for index, value in enumerate(graph.outputs):
        if not _is_half(value) or value.is_graph_input():
            continue
        assert value.dtype is not None
        name, half = value.name, value.dtype
        value.name = f"{name}.wide"
        cast = _cast(name or "", value, half)
        graph.append(cast)
        graph.outputs[index] = cast.outputs[0]


def _cast(name: str, value: ir.Value, to: ir.DataType) -> ir.Node:
    cast = ir.node("Cast", [value], {"to": int(to)}, name=f"{name}/Cast")
    cast.metadata_props[_EDGE] = "1"
    output = cast.outputs[0]
    output.name, output.shape, output.type = name, value.shape, ir.TensorType(to)
    return cast
