"""Takes linears apart of whose outputs parts are used: packed query, key and value, gate and up.

    y = x · W + b,  y₁, y₂, … = Split(y)      becomes      yᵢ = x · Wᵢ + bᵢ

Wᵢ are columns of W, read from its file when they are used. Techniques decide for each by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor, GraphPass, Phase, linear_at, remove_unused, stored_format
from tamiz_passes.fused_region import unpack
from tamiz_passes.linears import no_linear
from tamiz_passes.values import constant, last_dim, rank

#: Rows of a packed weight that lie together.
_TILE = 16


@dataclass(frozen=True)
class _Part:
    """Columns from `begin` to `end` of a linear's output, and the value that has them."""

    begin: int
    end: int
    value: ir.Value


class SplitLinears(GraphPass):
    """Gives each part of a linear's output a linear of its own."""

    name = "split-linears"
    phase = Phase.RECOGNISE
    needs = frozenset({"flat"})
    provides = frozenset({"linears"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        for node in list(model.graph):
            unpack(GraphEditor(model), node)
        for node in list(model.graph):
            if not _is_linear(node):
                continue
            parts = _parts(node)
            if parts is None:
                continue
            if stored_format(node) is not None and any(part.begin % _TILE for part in parts):
                self.note(node, f"Its parts do not begin at multiples of {_TILE} outputs.")
                continue
            _take_apart(model, node, parts)
            modified = True
        if modified:
            remove_unused(model)
            model.graph.sort()
        return ir.passes.PassResult(model, modified=modified)


def _is_linear(node: ir.Node) -> bool:
    if stored_format(node) is not None:
        return node.op_type == "BlockMatMul"
    return node.domain == "" and node.op_type in ("MatMul", "Gemm") and no_linear(node) is None


def _parts(node: ir.Node) -> list[_Part] | None:
    """The parts of the output that are used, all along its last dimension; None if it is used
    otherwise, or whole."""
    output = linear_at(node).output
    width = last_dim(output)
    if width is None or output.is_graph_output() or node.graph is None:
        return None
    found: list[_Part] = []
    for user in dict.fromkeys(output.consumers()):
        if user.graph is not node.graph or user.inputs[0] is not output:
            return None
        if (user.domain, user.op_type) == ("", "Split"):
            parts = _of_split(user, width)
        elif (user.domain, user.op_type) == ("", "Slice"):
            parts = _of_slice(user, width)
        else:
            return None
        if parts is None:
            return None
        found += parts
    return found if len(found) > 1 else None


def _of_split(node: ir.Node, width: int) -> list[_Part] | None:
    if node.attributes.get_int("axis", 0) not in (-1, (rank(node.outputs[0]) or 0) - 1):
        return None
    sizes = constant(node.inputs[1]) if len(node.inputs) > 1 else None
    if sizes is None and "split" in node.attributes:
        sizes = np.asarray(node.attributes["split"].as_ints())
    if sizes is None and len(node.inputs) == 1 and width % len(node.outputs) == 0:
        sizes = np.full(len(node.outputs), width // len(node.outputs))
    if sizes is None or int(sizes.sum()) != width or len(sizes) != len(node.outputs):
        return None
    ends = np.cumsum(sizes).tolist()
    begins = [0, *ends[:-1]]
    return [_Part(b, e, v) for b, e, v in zip(begins, ends, node.outputs, strict=True)]


def _of_slice(node: ir.Node, width: int) -> list[_Part] | None:
    numbers = [constant(value) for value in node.inputs[1:]]
    if not 3 <= len(numbers) <= 4 or any(n is None or n.size != 1 for n in numbers):
        return None
    begin, end, axis, *step = [int(n.reshape(())) for n in numbers if n is not None]
    if axis not in (-1, (rank(node.outputs[0]) or 0) - 1) or step not in ([], [1]):
        return None
    begin, end = (max(0, min(width, n + width if n < 0 else n)) for n in (begin, end))
    return [_Part(begin, end, node.outputs[0])] if begin < end else None


def _take_apart(model: ir.Model, node: ir.Node, parts: list[_Part]) -> None:
    for number, part in reversed(list(enumerate(parts))):
        if part.value.uses() or part.value.is_graph_output():
            _own_linear(GraphEditor(model), node, number, part)


def _own_linear(graph: GraphEditor, node: ir.Node, number: int, part: _Part) -> None:
    linear = linear_at(node)
    stored, by_rows = stored_format(node), _has_rows(node, linear.weight)
    weight = _cut(graph, linear.weight, number, part, stored is not None, rows=by_rows)
    attributes = {name: a.value for name, a in node.attributes.items()}
    if stored is not None:
        attributes["n"] = part.end - part.begin
    inputs = list(node.inputs)
    inputs[1] = _transposed_like(graph, node, weight, number)
    bias = linear.bias
    if bias is not None and node.op_type != "MatMul":
        inputs[inputs.index(bias)] = _cut(graph, bias, number, part, False, rows=True)
    name = f"{_scope(node)}.{number}/{node.op_type}"
    inside = graph.value(f"{part.value.name}.product", part.value)
    whole = bias is None or node.op_type != "MatMul"
    made = ir.node(
        node.op_type, inputs, attributes, domain=node.domain, name=name, outputs=[inside]
    )
    model = graph.model.graph
    model.insert_after(node, made)
    result = inside
    if not whole:
        assert bias is not None
        own = _cut(graph, bias, number, part, False, rows=True)
        result = graph.value(f"{part.value.name}.sum", part.value)
        add = ir.node("Add", [inside, own], name=f"{_scope(node)}.{number}/Add", outputs=[result])
        model.insert_after(made, add)
    old, kept = part.value, part.value.name
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    old.name = f"{kept}.before"
    result.name, result.type, result.shape = kept, old.type, old.shape


def _scope(node: ir.Node) -> str:
    scope, _, last = (node.name or "").rpartition("/")
    return scope or last


def _has_rows(node: ir.Node, weight: ir.Value) -> bool:
    """Whether the first dimension of a weight is that of the outputs."""
    if node.domain == DOMAIN:
        return True
    flipped = node.attributes.get_int("transB", 0) == 1
    return (node.inputs[1] is not weight and _turns(node.inputs[1])) != flipped


def _turns(value: ir.Value | None) -> bool:
    """Whether an odd number of Transposes leads to a constant."""
    count = 0
    while value is not None and (before := value.producer()) is not None:
        count += before.op_type == "Transpose"
        value = before.inputs[0]
    return count % 2 == 1


def _transposed_like(graph: GraphEditor, node: ir.Node, weight: ir.Value, number: int) -> ir.Value:
    """`weight` behind a Transpose, where the weight of `node` is."""
    if not _turns(node.inputs[1]):
        return weight
    turned = graph.value(f"{weight.name}.turned", weight)
    assert weight.shape is not None
    turned.shape = ir.Shape(list(weight.shape)[::-1])
    name = f"{_scope(node)}.{number}/Transpose"
    graph.insert(node, name, "Transpose", [weight], {"perm": [1, 0]}, [turned], domain="")
    return turned


def _cut(
    graph: GraphEditor, value: ir.Value, number: int, part: _Part, packed: bool, *, rows: bool
) -> ir.Value:
    """A constant of the part's outputs, which is read from the whole one when it is used."""
    tensor = value.const_value
    assert tensor is not None
    begin, end = part.begin, part.end
    if packed:
        begin, end = begin // _TILE, -(-end // _TILE)
    axis = 0 if rows else len(tensor.shape) - 1
    shape = list(tensor.shape.numpy())
    shape[axis] = end - begin
    name = f"{value.name}.{number}"
    existing = graph.model.graph.initializers.get(name)
    if existing is not None:
        return existing

    def read() -> ir.TensorProtocol:
        array = tensor.numpy()
        cut = array[begin:end] if rows else array[..., begin:end]
        return ir.Tensor(cut, dtype=tensor.dtype, shape=ir.Shape(shape), name=name)

    lazy = ir.LazyTensor(read, dtype=tensor.dtype, shape=ir.Shape(shape), name=name, cache=True)
    made = ir.Value(
        name=name, shape=ir.Shape(shape), type=ir.TensorType(tensor.dtype), const_value=lazy
    )
    graph.model.graph.register_initializer(made)
    return made
