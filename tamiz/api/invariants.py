"""What no graph pass may change: the graph's inputs and outputs, its validity, its random draws."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from tamiz.api.nodes import captured, draws, graphs_in
from tamiz.interface.metadata import DOMAIN
from tamiz.interface.states import PAST, present_of

_MAX_INPUTS = 1 << 16
#: Name, type and shape of an input or output.
_Port = tuple[str | None, str, str]


class BrokenGraphError(Exception):
    """A pass broke what holds for every graph; one sentence says what."""


@dataclass(frozen=True)
class Invariants:
    """What held before a pass.

    Attributes:
        inputs: Of the graph, without states of tamiz, in order.
        outputs: The same of outputs.
        opsets: Version by domain, without that of `tamiz`.
        nodes: All nodes of the graph.
        drawing: Names of the outputs of nodes that draw and that an output of the graph needs.
    """

    inputs: tuple[_Port, ...]
    outputs: tuple[_Port, ...]
    opsets: tuple[tuple[str, int], ...]
    nodes: frozenset[ir.Node]
    drawing: frozenset[str | None]

    @classmethod
    def of(cls, model: ir.Model, *, states: bool) -> Invariants:
        """The invariants of a model.

        Args:
            model: The model.
            states: Whether inputs and outputs that are states of a sequence count: passes of the
                phase `fuse` may join them.
        """
        graph = model.graph
        pasts = set() if states else {v.name or "" for v in graph.inputs if _is_state(v)}
        presents = {present_of(past) for past in pasts}
        presents |= {v.name or "" for v in graph.outputs if not states and _is_present(v)}
        return cls(
            tuple(_port(v) for v in graph.inputs if v.name not in pasts),
            tuple(_port(v) for v in graph.outputs if v.name not in presents),
            tuple(sorted((d, v) for d, v in graph.opset_imports.items() if d != DOMAIN)),
            frozenset(graph),
            _drawing(graph),
        )

    def check(self, model: ir.Model, *, states: bool) -> None:
        """Compares with the model after a pass.

        Raises:
            BrokenGraphError: An invariant does not hold.
        """
        now = Invariants.of(model, states=states)
        # Passes may add inputs at the end that have a default, so that no caller sees them.
        _compare("inputs", self.inputs, now.inputs[: len(self.inputs)])
        for value in model.graph.inputs:
            added = _port(value) in now.inputs[len(self.inputs) :]
            if added and value.const_value is None:
                raise BrokenGraphError(f"it adds the input {value.name} without a default")
        _compare("outputs", self.outputs, now.outputs)
        if not set(self.opsets) <= set(now.opsets):
            raise BrokenGraphError(f"opsets were {self.opsets} and are {now.opsets}")
        if lost := self.drawing - now.drawing:
            raise BrokenGraphError(f"{min(map(str, lost))}, which is drawn at random, is gone")
        _check_order(model.graph, set())
        for node in now.nodes - self.nodes:
            _check_schema(node, dict(now.opsets).get("", 1))


def _is_state(value: ir.Value) -> bool:
    return (value.name or "").startswith(PAST)


def _is_present(value: ir.Value) -> bool:
    return (value.name or "").startswith(("present.", "present_"))


def _port(value: ir.Value) -> _Port:
    return value.name, str(value.type), str(value.shape)


def _compare(what: str, before: tuple[_Port, ...], after: tuple[_Port, ...]) -> None:
    if before == after:
        return
    if [name for name, *_ in before] != [name for name, *_ in after]:
        names = (", ".join(str(name) for name, *_ in ports) for ports in (before, after))
        raise BrokenGraphError("the graph's {} were [{}] and are [{}]".format(what, *names))
    was, now = next((a, b) for a, b in zip(before, after, strict=True) if a != b)
    raise BrokenGraphError(f"the graph's {was[0]} was {was[1:]} and is {now[1:]}")


def _drawing(graph: ir.Graph) -> frozenset[str | None]:
    """Names of the values of needed nodes that draw."""
    if not any(draws(node) for node in graph):
        return frozenset()
    needed = set(graph.outputs)
    drawn: set[str | None] = set()
    for node in reversed(graph):
        if needed.isdisjoint(node.outputs):
            continue
        needed.update(captured(node))
        if draws(node):
            drawn.update(value.name for value in node.outputs if value in needed)
    return frozenset(drawn)


def _check_order(graph: ir.Graph, around: set[ir.Value]) -> None:
    """Every value is defined once, before it is used."""
    defined = around | {*graph.inputs, *graph.initializers.values()}
    names: set[str] = {value.name or "" for value in {*graph.inputs, *graph.initializers.values()}}
    for node in graph:
        for value in node.inputs:
            if value is not None and value not in defined:
                raise BrokenGraphError(f"{node.name} reads {value.name} before it is computed")
        for inner in graphs_in(node):
            _check_order(inner, defined)
        for value in node.outputs:
            if value.name and value.name in names:
                raise BrokenGraphError(f"the name {value.name} stands for two values")
            names.add(value.name or "")
            defined.add(value)
    for value in graph.outputs:
        if value not in defined:
            raise BrokenGraphError(f"the output {value.name} is not computed")


def _check_schema(node: ir.Node, opset: int) -> None:
    """A new node of ONNX's own domain is an op of the model's opset."""
    import onnx.defs

    if node.domain != "":
        return
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, "")
    except onnx.defs.SchemaError as error:
        raise BrokenGraphError(f"{node.op_type} is no op of opset {opset}") from error
    unknown = sorted(node.attributes.keys() - schema.attributes.keys())
    if schema.deprecated or unknown or not _takes(schema, len(node.inputs)):
        shown = f" with {unknown[0]}" if unknown else f" of {len(node.inputs)} inputs"
        raise BrokenGraphError(f"{node.op_type}{shown} is no op of opset {opset}")


def _takes(schema: object, inputs: int) -> bool:
    least, most = (int(getattr(schema, name)) for name in ("min_input", "max_input"))
    return least <= inputs <= min(most, _MAX_INPUTS)
