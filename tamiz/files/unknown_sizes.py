"""Sizes that a graph does not know: ONNX leaves them out, and some tools write -1 or ? for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

#: A name that stands for several sizes, which need not be equal.
_ANY = "?"


def mark_unknown_sizes(model: ir.Model) -> None:
    """Makes dimensions unknown that hold no size and no name of one.

    PaddlePaddle's exporter writes ``dim_value: -1`` and ``dim_param: "?"`` where a size is not
    fixed. Two of these are not one size, so they must not be compared.

    Args:
        model: Graph whose inputs, outputs and other values are changed in place.
    """
    import onnx_ir as ir

    for value in _values(model):
        if value.shape is not None and any(_is_unknown(dim) for dim in value.shape):
            value.shape = ir.Shape([None if _is_unknown(dim) else dim for dim in value.shape])


def _values(model: ir.Model) -> Iterator[ir.Value]:
    """The values of the graph, of the graphs in it, and of functions."""
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from (*graph.inputs, *graph.outputs)
    parts: tuple[ir.Graph | ir.Function, ...] = (model.graph, *model.functions.values())
    for part in parts:
        for node in part.all_nodes():
            yield from node.outputs


def _is_unknown(dim: int | ir.SymbolicDim) -> bool:
    return dim < 0 if isinstance(dim, int) else dim.value == _ANY
