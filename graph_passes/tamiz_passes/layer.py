"""Fuses the ops of one decoder layer into one node that runs them as stages.

Of a layer's nodes of the domain `tamiz`, those form one `Fused` node that no path through another
node leads back into; a dense MatMul left inside the layer thus splits it into pieces. The program's
text is described at the op `Fused`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import onnx_ir as ir
import onnx_ir.passes.common as common

from tamiz.graph import (
    DOMAIN,
    LAYER,
    POLICY,
    SITE,
    TECHNIQUE,
    UNSAFE,
    VERSION,
    GraphPass,
    Phase,
    replace,
)
from tamiz_passes.values import operands


class FuseLayers(GraphPass):
    """Makes one `Fused` node of each layer, or of the pieces that dense nodes leave of it."""

    name = "fuse-layers"
    phase = Phase.FUSE

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        modified = False
        _take_norms_in(model)
        layers: dict[str, list[ir.Node]] = {}
        for node in model.graph:
            if LAYER in node.metadata_props:
                layers.setdefault(node.metadata_props[LAYER], []).append(node)
        for layer, nodes in layers.items():
            fusable = [node for node in nodes if node.domain == DOMAIN and node.op_type != "Fused"]
            pieces = _pieces(model.graph, fusable)
            if len(pieces) > 1:
                for node in nodes:
                    if node.domain != DOMAIN:
                        self.note(node, f"{node.op_type} stays and splits layer {layer}.")
            names = _names(layer, pieces)
            for name, piece in zip(names, pieces, strict=True):
                if len(piece) > 1:
                    _fuse(model, piece, name)
                    modified = True
                elif fusable:
                    self.note(
                        piece[0], f"It stands alone in layer {layer}: nothing to fuse it with."
                    )
        if modified:
            model.graph.sort()
        cleaned = common.RemoveUnusedNodesPass()(model).modified
        return ir.passes.PassResult(model, modified=modified or cleaned)


def _take_norms_in(model: ir.Model) -> None:
    """Gives a norm after the last layer, which adds that layer's residual, to the layer."""
    for node in model.graph:
        if node.domain == DOMAIN and node.op_type == "RMSNorm" and LAYER not in node.metadata_props:
            before = [v.producer() for v in operands(node)]
            layers = {n.metadata_props[LAYER] for n in before if n and LAYER in n.metadata_props}
            if layers:
                node.metadata_props[LAYER] = max(layers, key=int)


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
        for value in operands(node):
            before = value.producer()
            if before is not None and before in levels:
                left = before in members and node not in members
                level = max(level, levels[before] + left)
        levels[node] = level
        if node in members:
            pieces.setdefault(level, []).append(node)
    return [pieces[level] for level in sorted(pieces)]


def _names(layer: str, pieces: Sequence[Sequence[ir.Node]]) -> list[str]:
    """`layers.7`, or where it is in pieces `layers.7.attention_block` and the like."""
    if len(pieces) == 1:
        return [f"layers.{layer}"]
    names = []
    for piece in pieces:
        ops = {node.op_type for node in piece}
        part = "attention" if "Attention" in ops else "ffn" if "SwiGLU" in ops else "linear"
        names.append(f"layers.{layer}.{part}_block")
    count = Counter(names)
    return [
        f"{name}{names[:index].count(name) + 1}" if count[name] > 1 else name
        for index, name in enumerate(names)
    ]


def _fuse(model: ir.Model, piece: list[ir.Node], name: str) -> None:
    stages = _waves(piece)
    inside = {value for node in stages for value in node.outputs}
    inputs = list(dict.fromkeys(v for node in stages for v in operands(node) if v not in inside))
    numbers = {value: number for number, value in enumerate(inputs)}
    lines = []
    for node in stages:
        read = [_number(numbers, value) for value in node.inputs]
        for value in node.outputs:
            if value.uses() or value.is_graph_output():
                numbers[value] = len(numbers)
        written = [_number(numbers, value) for value in node.outputs]
        attributes = [f"{k}={_text(a)}" for k, a in sorted(node.attributes.items())]
        lines.append(" ".join([node.op_type, *attributes, ":", *read, "->", *written]))
    members = set(stages)
    outputs = [
        v
        for v in numbers
        if v in inside and (v.is_graph_output() or not members.issuperset(v.consumers()))
    ]
    metadata = {
        key: joined
        for key in (SITE, TECHNIQUE, VERSION, POLICY, LAYER, UNSAFE)
        if (joined := _joined(n.metadata_props.get(key) for n in stages))
    }
    fused = replace(
        model,
        piece[-1],
        outputs,
        "Fused",
        inputs,
        {"program": "\n".join(lines), "outputs": [numbers[v] for v in outputs]},
        name=name,
    )
    fused.metadata_props.update(metadata)


def _waves(piece: list[ir.Node]) -> list[ir.Node]:
    """Orders nodes by depth, so that what is independent (q, k, v; gate, up) stands together."""
    depths: dict[ir.Node, int] = {}
    for node in piece:
        before = [v.producer() for v in operands(node)]
        depths[node] = 1 + max((depths[n] for n in before if n in depths), default=0)
    return sorted(piece, key=lambda node: depths[node])


def _number(numbers: dict[ir.Value, int], value: ir.Value | None) -> str:
    return str(numbers[value]) if value is not None and value in numbers else "-"


def _text(attribute: ir.Attr) -> str:
    if attribute.type == ir.AttributeType.FLOAT:
        return f"{attribute.as_float():.9g}"
    if attribute.type == ir.AttributeType.INTS:
        return ",".join(map(str, attribute.as_ints()))
    return str(attribute.value)


def _joined(parts: Iterable[str | None]) -> str:
    return ",".join(dict.fromkeys(part for part in parts if part))
