"""Recognises a gated short convolution over time, with its state, as one tamiz.ShortConv.

    u = Concat(past, b · v · shown)      Slice(u, 1 - L) is the present
    y = c · Conv(u),  each channel alone

The new node keeps the rows of more tokens than the old ones, so that the last ones can be forgotten
without a copy. As the state of a sequence then has another shape, this runs after the techniques.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz.api import (
    PAST,
    RECENT,
    SPARE,
    GraphEditor,
    GraphPass,
    Phase,
    present_of,
    remove_unused,
)
from tamiz_passes.probe import MASK_INPUT
from tamiz_passes.values import Refusal, constant, last_dim, operands, other_operand, producer, rank

#: Tokens that the op mixes at most.
_MOST_TAPS = 16
_IDS = "input_ids"


@dataclass(frozen=True)
class _Found:
    """A convolution: its inputs, its weight ``[L, H]``, its state and its last node."""

    b: ir.Value
    c: ir.Value
    x: ir.Value
    weight: np.ndarray
    past: ir.Value
    present: ir.Value
    last: ir.Node


class RecogniseShortConv(GraphPass):
    """Puts tamiz.ShortConv for what lies between the linears of a short convolution."""

    name = "short-conv"
    phase = Phase.FUSE
    provides = frozenset({"short-conv", "ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        graph, modified = GraphEditor(model), False
        mask = graph.input(MASK_INPUT)
        for node in [n for n in model.graph if n.domain == "" and n.op_type == "Conv"]:
            past = _past(node)
            if past is None or mask is None:
                continue
            try:
                _rewrite(graph, _find(node, past, mask), mask)
                modified = True
            except Refusal as refusal:
                self.note(node, refusal.sentence)
        if modified:
            remove_unused(model)
            model.graph.sort()
        return ir.passes.PassResult(model, modified=modified)


def _past(conv: ir.Node) -> ir.Value | None:
    """The state that a convolution reads; None of one without."""
    joined = producer(_turned(conv.inputs[0]), "Concat")
    past = operands(joined)[0] if joined is not None else None
    is_state = past is not None and past.is_graph_input() and (past.name or "").startswith(PAST)
    return past if is_state else None


def _turned(value: ir.Value | None) -> ir.Value | None:
    """What a Transpose of the last two of three dimensions reads."""
    node = producer(value, "Transpose")
    if node is None or list(node.attributes["perm"].as_ints()) != [0, 2, 1]:
        return None
    return node.inputs[0]


def _find(conv: ir.Node, past: ir.Value, mask: ir.Value) -> _Found:
    weight = _weight(conv)
    joined = producer(_turned(conv.inputs[0]), "Concat")
    assert joined is not None
    _, *new = operands(joined)
    if len(new) != 1 or joined.attributes["axis"].as_int() != 1 or rank(past) != 3:
        raise Refusal("the state is not joined with new tokens along the second dimension")
    b, x = _gated(new[0], mask)
    y = _only_user(_only_user(conv, "Transpose"), "Mul")
    c = other_operand(y, next(v for v in operands(y) if _turned(v) is conv.outputs[0]))
    width = weight.shape[1]
    if any(last_dim(value) != width for value in (b, c, x)):
        raise Refusal(f"what is multiplied has other widths than the {width} channels")
    present = next((v for v in _slices(joined.outputs[0], 1 - len(weight))), None)
    if present is None or present.name != present_of(past.name or ""):
        raise Refusal(f"its state after a run is no output {present_of(past.name or '')}")
    return _Found(b, c, x, weight, past, present, y)


def _weight(conv: ir.Node) -> np.ndarray:
    """``[L, H]``, of a convolution of each channel alone over the tokens before."""
    source = conv.inputs[1]
    before = producer(source, "Unsqueeze")
    kernel = constant(operands(before)[0] if before is not None else source)
    own = {name: attribute.value for name, attribute in conv.attributes.items()}
    if kernel is None or len(operands(conv)) > 2:
        raise Refusal("its weight is computed, or it has a bias")
    kernel = kernel.reshape(kernel.shape[0], -1)
    padded = any(own.get("pads", [])) or own.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    ones = [*own.get("strides", []), *own.get("dilations", [])]
    if own.get("group", 1) != len(kernel) or padded or any(one != 1 for one in ones):
        raise Refusal("it mixes channels, or pads, or leaves out tokens")
    if kernel.shape[1] > _MOST_TAPS:
        raise Refusal(f"it mixes {kernel.shape[1]} tokens, expected at most {_MOST_TAPS}")
    return np.ascontiguousarray(kernel.T.astype(np.float32))


def _gated(u: ir.Value, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
    """b and x of b · x · shown."""
    product = producer(u, "Mul")
    parts = operands(product) if product is not None else []
    shown = [value for value in parts if _shows(value, mask)]
    if product is None or len(shown) != 1:
        raise Refusal("new tokens are not multiplied by the mask")
    gate = producer(other_operand(product, shown[0]), "Mul")
    if gate is None:
        raise Refusal("new tokens are no product of two parts")
    b, x = operands(gate)
    return b, x


def _shows(value: ir.Value, mask: ir.Value) -> bool:
    """Whether a value is the mask of the new tokens: its last columns, as many as there are ids."""
    cast = producer(_first(value, "Unsqueeze"), "Cast")
    cut = producer(_first(cast.outputs[0], "Cast"), "Slice") if cast is not None else None
    if cut is None or cut.inputs[0] is not mask:
        return False
    length = producer(_first(cut.inputs[1], "Neg"), "Shape")
    ids = length.inputs[0] if length is not None else None
    axis = constant(cut.inputs[3]) if len(cut.inputs) == 4 else None
    return ids is not None and ids.name == _IDS and axis is not None and axis.tolist() == [1]


def _first(value: ir.Value | None, op_type: str) -> ir.Value | None:
    node = producer(value, op_type)
    return node.inputs[0] if node is not None else None


def _only_user(node: ir.Node, op_type: str) -> ir.Node:
    users = list(node.outputs[0].consumers())
    if len(users) != 1 or users[0].domain != "" or users[0].op_type != op_type:
        raise Refusal(f"{node.name} is not read by one {op_type} alone")
    return users[0]


def _slices(joined: ir.Value, begin: int) -> list[ir.Value]:
    """Outputs of the graph that are the rows of `joined` from `begin` on."""
    found = []
    for user in joined.consumers():
        numbers = [constant(value) for value in user.inputs[1:]]
        if user.op_type == "Slice" and len(numbers) == 3 and user.outputs[0].is_graph_output():
            starts, ends, axes = (n.tolist() if n is not None else None for n in numbers)
            if starts == [begin] and axes == [1] and ends is not None and ends[0] >= 2**31 - 1:
                found.append(user.outputs[0])
    return found


def _rewrite(graph: GraphEditor, found: _Found, mask: ir.Value) -> None:
    taps, width = found.weight.shape
    number = (found.past.name or "").rpartition(".")[2]
    shape = ["batch_size", SPARE + taps - 1, width]
    past = graph.add_past(f"{RECENT.removeprefix(PAST)}{number}", shape)
    weight = graph.constant(f"short_conv.{number}", found.weight)
    inputs = {"b": found.b, "c": found.c, "x": found.x, "weight": weight}
    inputs |= {"past": past, "attention_mask": mask}
    graph.model.graph.outputs.remove(found.present)
    node = graph.replace(found.last, "ShortConv", inputs, {}, [found.last.outputs[0]])
    graph.add_present(node, "present", past, shape)
    remove_unused(graph.model)
    graph.model.graph.inputs.remove(found.past)
