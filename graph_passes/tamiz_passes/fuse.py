"""Fuses what is of the domain `tamiz` into one node that runs it as stages.

    node, node, node, …       becomes      Fused(program: stage, stage, stage, …)

All nodes of the domain form one `Fused` node, from the embedding to the head; where a path
leads out of them through another node and back in, as through a dense MatMul left inside a layer,
that splits them into pieces. The program's text is described at the op `Fused`.

What is kept of a sequence for a layer each becomes one input and one output of the graph, with a
first dimension of layers, where all of it belongs to one `Fused` node: onnxruntime takes 2 to 3 µs
a step for each pair. Keys and values as optimum knows them stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count

import onnx_ir as ir

from tamiz.api import (
    CACHE,
    DOMAIN,
    KEY_VALUES,
    LAYER,
    PAST,
    POLICY,
    SITE,
    TECHNIQUE,
    UNSAFE,
    VERSION,
    GraphEditor,
    GraphPass,
    Phase,
    captured,
    present_of,
    remove_unused,
    stacked,
)
from tamiz_ops.program import Stage, write_program
from tamiz_passes.values import operands


class FuseNodes(GraphPass):
    """Makes one `Fused` node of all nodes of the domain, or of the pieces that others leave."""

    name = "fuse-nodes"
    phase = Phase.FUSE
    needs = frozenset({"ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        fusable = [n for n in model.graph if n.domain == DOMAIN and n.op_type != "Fused"]
        pieces = _pieces(model.graph, fusable)
        if len(pieces) > 1:
            self._note_what_splits(model.graph)
        fused = [piece for piece in pieces if len(piece) > 1]
        for (node,) in (piece for piece in pieces if len(piece) == 1):
            if LAYER in node.metadata_props:
                self.note(node, "It stands alone: nothing to fuse it with.")
        for number, piece in enumerate(fused, 1):
            _fuse(model, piece, "fused" if len(fused) == 1 else f"fused.{number}")
        if fused:
            model.graph.sort()
        cleaned = remove_unused(model)
        return ir.passes.PassResult(model, modified=bool(fused) or cleaned)

    def _note_what_splits(self, graph: ir.Graph) -> None:
        for node in graph:
            layer = node.metadata_props.get(LAYER)
            before = [value.producer() for value in operands(node)]
            if layer and node.domain != DOMAIN and any(n and n.domain == DOMAIN for n in before):
                self.note(node, f"{node.op_type} stays and splits layer {layer}.")


def _pieces(graph: ir.Graph, fusable: list[ir.Node]) -> list[list[ir.Node]]:
    """Splits `fusable` into convex pieces.

    A node's level is how often a path to it can leave `fusable`; what leaves one level and comes
    back arrives at a higher one, so that nodes of one level are convex.
    """
    members = set(fusable)
    levels: dict[ir.Node, int] = {}
    pieces: dict[int, list[ir.Node]] = {}
    for node in graph:
        level = 0
        for value in captured(node):
            before = value.producer()
            if before is not None and before in levels:
                left = before in members and node not in members
                level = max(level, levels[before] + left)
        levels[node] = level
        if node in members:
            pieces.setdefault(level, []).append(node)
    return [pieces[level] for level in sorted(pieces)]


def _fuse(model: ir.Model, piece: list[ir.Node], name: str) -> None:
    nodes = _waves(piece)
    members = set(piece)
    inside = [value for node in nodes for value in node.outputs]
    read = dict.fromkeys(value for node in nodes for value in operands(node))
    inputs = [value for value in read if value.producer() not in members]
    outputs = [v for v in inside if v.is_graph_output() or not members.issuperset(v.consumers())]
    stacks = _stacks(inputs, outputs, members)
    pasts = [past for stack in stacks for past, _ in stack]
    presents = [present for stack in stacks for _, present in stack]
    inputs = [value for value in inputs if value not in pasts]
    outputs = [value for value in outputs if value not in presents]
    sizes = [len(stack) for stack in stacks]
    stages = [_stage(node) for node in nodes]
    program = write_program([*inputs, *pasts], stages, [*outputs, *presents], sizes)
    whole_pasts, whole_presents = _stack(model, stacks)
    fused = GraphEditor(model).replace(
        piece[-1],
        "Fused",
        [*inputs, *whole_pasts],
        program,
        [*outputs, *whole_presents],
        name=name,
    )
    model.graph.outputs.extend(fused.outputs[len(outputs) :])
    for past in pasts:
        model.graph.inputs.remove(past)
    for key in (SITE, TECHNIQUE, VERSION, POLICY, LAYER, UNSAFE):
        if joined := _joined(node.metadata_props.get(key) for node in nodes):
            fused.metadata_props[key] = joined


_State = tuple[ir.Value, ir.Value]  # past, present


def _stacks(
    inputs: list[ir.Value], outputs: list[ir.Value], members: set[ir.Node]
) -> list[list[_State]]:
    """The states that only `members` read and write, by kind and shape where there are several."""
    presents = {value.name: value for value in outputs if value.is_graph_output()}
    stacks: dict[tuple[str, ...], list[_State]] = {}
    for past in inputs:
        name = past.name or ""
        if not (past.is_graph_input() and name.startswith(PAST)):
            continue
        if name.startswith(KEY_VALUES) and CACHE not in past.metadata_props:
            continue
        present = presents.get(present_of(name))
        if present is None or not members.issuperset([*past.consumers(), *present.consumers()]):
            continue
        key = (stacked(name), str(past.dtype), str(past.shape), str(present.shape))
        stacks.setdefault(key, []).append((past, present))
    return [stack for stack in stacks.values() if len(stack) > 1]


def _stack(model: ir.Model, stacks: list[list[_State]]) -> tuple[list[ir.Value], list[ir.Value]]:
    """One past, which becomes an input of the graph, and one present for each of `stacks`.

    The presents that they hold are outputs of the graph no more. Of stacks of one kind all but the
    first are numbered.
    """
    pasts, presents = [], []
    for stack in stacks:
        kind = stacked(stack[0][0].name or "")
        taken = {value.name for value in model.graph.inputs}
        names = chain([kind], (f"{kind}.{number}" for number in count(2)))
        name = next(name for name in names if name not in taken)
        pasts.append(_whole(name, [past for past, _ in stack]))
        presents.append(_whole(present_of(name), [present for _, present in stack]))
        model.graph.inputs.append(pasts[-1])
        for _, present in stack:
            model.graph.outputs.remove(present)
    return pasts, presents


def _whole(name: str, members: list[ir.Value]) -> ir.Value:
    shape = members[0].shape
    assert shape is not None
    return ir.Value(name=name, shape=ir.Shape([len(members), *shape]), type=members[0].type)


def _waves(piece: list[ir.Node]) -> list[ir.Node]:
    """Orders nodes by their distance to the end, so that what is independent stands together.

    So q, k and v are neighbours, and gate and up, also where only one of them waits for a mask.
    """
    heights: dict[ir.Node, int] = {}
    for node in reversed(piece):
        after = [n for value in node.outputs for n in value.consumers()]
        heights[node] = 1 + max((heights[n] for n in after if n in heights), default=0)
    return sorted(piece, key=lambda node: -heights[node])


def _stage(node: ir.Node) -> Stage[ir.Value]:
    attributes = {name: attribute.value for name, attribute in node.attributes.items()}
    outputs = [v if v.uses() or v.is_graph_output() else None for v in node.outputs]
    return Stage(node.op_type, attributes, node.inputs, outputs, _part(node))


def _part(node: ir.Node) -> str:
    """What messages and metrics call a stage's part of the program: its layer, or its own name."""
    layer = node.metadata_props.get(LAYER)
    return f"layers.{layer}" if layer else node.name or node.op_type


def _joined(parts: Iterable[str | None]) -> str:
    return ",".join(dict.fromkeys(part for part in parts if part))
