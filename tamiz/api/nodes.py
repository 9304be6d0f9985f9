"""What nodes are and need, with the graphs inside of them, and how unused ones go."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
import onnx_ir.passes.common as common

#: Ops of ONNX and of ONNX Runtime that draw random numbers in every run.
_DRAWING = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike"),
        *("BiasDropout", "BitmaskBiasDropout", "BitmaskDropout", "BiasSoftmaxDropout"),
        *("Sampling", "DropoutGrad"),
    }
)


def draws(node: ir.Node) -> bool:
    """Whether a node may give other numbers in every run, so that two equal nodes differ.

    A node with a graph inside draws where one of its nodes does.
    """
    if node.op_type in _DRAWING or (node.op_type == "Dropout" and _trains(node)):
        return True
    return any(draws(inner) for graph in graphs_in(node) for inner in graph)


def _trains(dropout: ir.Node) -> bool:
    """Whether a Dropout may drop: its training_mode is given, and not a constant false."""
    mode = dropout.inputs[2] if len(dropout.inputs) > 2 else None
    if mode is None:
        return False
    constant = None if mode.is_graph_input() else mode.const_value
    return constant is None or bool(constant.numpy().any())


def graphs_in(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs of a node's attributes, such as the branches of an If."""
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def captured(node: ir.Node) -> Iterator[ir.Value]:
    """The values from around a node that the graphs inside of it read, and its own inputs."""
    yield from (value for value in node.inputs if value is not None)
    for graph in graphs_in(node):
        own = {value for inner in graph for value in inner.outputs}
        own |= {*graph.inputs, *graph.initializers.values()}
        for inner in graph:
            yield from (value for value in captured(inner) if value not in own)


def remove_unused(model: ir.Model) -> bool:
    """Removes nodes, optional outputs and initializers that no output of the graph needs.

    Returns:
        Whether it removed any.
    """
    removed = False
    for node in reversed(model.graph):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            _detach(node)
            model.graph.remove(node, safe=True)
            removed = True
    return common.RemoveUnusedNodesPass()(model).modified or removed


def _detach(node: ir.Node) -> None:
    """Lets the graphs inside of a node read nothing: onnx-ir removes the node alone."""
    for graph in graphs_in(node):
        for inner in graph:
            _detach(inner)
            for index in range(len(inner.inputs)):
                inner.replace_input_with(index, None)
