"""Puts one tamiz.TextAttention for each attention of an encoder, and lets texts do without padding.

The graph gets an input `text_begins` (int64 ``[1]`` or ``[tokens]``), zero by default, so a caller
that does not know it sees no change. A caller that knows it puts several texts into one row: the
element of a token is the first token of its text. The op describes it. Positions begin anew with
each text, and all other nodes work token by token.

The towers of images and sounds, and texts of a fixed length, have no input ``attention_mask``:
nothing is hidden in them, and they get no input `text_begins`.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, TEXT_BEGINS, GraphEditor, GraphPass, Phase, remove_unused
from tamiz_passes.attention_inputs import joined_heads, shared_table
from tamiz_passes.expansion import Expansion
from tamiz_passes.fused_region import is_fused
from tamiz_passes.probe import MASK_INPUT
from tamiz_passes.shapes import infer_shapes
from tamiz_passes.text_heads import TextHead, rows_of_texts, text_head
from tamiz_passes.text_proof import (
    TextParameters,
    TextRegion,
    find_fused_text,
    find_text_region,
    prove_text,
)
from tamiz_passes.values import (
    Refusal,
    before,
    constant,
    name_in_scope,
    operands,
    producer,
    rank,
    walk,
)

_IDS, _TYPES = "input_ids", "token_type_ids"
#: Ops of which an element depends on elements at the same place only.
_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Erf", "Tanh", "Sigmoid", "Relu", "Gelu", "Cast"}
    | {"Identity", "Neg", "Clip", "Mish", "Exp", "Dropout", "LayerNormalization"}
)
#: Ops of the domain that work token by token.
_OF_TOKENS = frozenset(
    {"BlockMatMul", "BlockGather", "ChannelMatMul", "RMSNorm", "SwiGLU", "TextAttention"}
)
#: What computes positions that may be of any number.
_COUNTS = frozenset({"Range", "CumSum"})


class RecogniseTextAttention(GraphPass):
    """Recognises the attention of encoders; see the module."""

    name = "text-attention"
    phase = Phase.FUSE
    provides = frozenset({"text-attention", "ops-final"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Rewrites `model` in place."""
        graph = GraphEditor(model)
        mask = graph.input(MASK_INPUT)
        attentions = [n for n in model.graph if is_fused(n) or _is_softmax(n)]
        if _has_caches(model) or (mask is not None and graph.input(_IDS) is None):
            return ir.passes.PassResult(model, modified=False)
        proved: dict[tuple[Hashable, ...], TextParameters] = {}
        replaced = []
        for node in attentions:
            try:
                region = (find_fused_text if is_fused(node) else find_text_region)(node)
                parameters = prove_text(model, region, proved)
                hidden = mask if parameters.masked else None
                replaced.append(_rewrite(graph, region, parameters, hidden))
            except Refusal as refusal:
                self.note(node, refusal.sentence)
        if not replaced:
            return ir.passes.PassResult(model, modified=False)
        remove_unused(model)
        model.graph.sort()
        infer_shapes(model)
        masked = [node for node in replaced if mask in node.inputs]
        if mask is not None and len(masked) == len(attentions):
            try:
                _take_texts(model, graph, replaced)
            except Refusal as refusal:
                self.note(replaced[0], f"Texts are padded: {refusal}.")
        return ir.passes.PassResult(model, modified=True)


def _is_softmax(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == ("", "Softmax")


def _has_caches(model: ir.Model) -> bool:
    """Whether keys and values of a step go into a graph and come out of it."""
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    return all(any(rank(value) == 4 for value in each) for each in (inputs, model.graph.outputs))


def _rewrite(
    graph: GraphEditor, region: TextRegion, parameters: TextParameters, mask: ir.Value | None
) -> ir.Node:
    at = region.output.producer()
    assert at is not None
    return graph.replace(
        at,
        "TextAttention",
        {
            "q": joined_heads(graph, region.q),
            "k": joined_heads(graph, region.k),
            "v": joined_heads(graph, region.v),
            "attention_mask": mask,
            "inverse_frequency": _table(graph, "inverse_frequency", parameters.inverse_frequency),
            "distance_bias": _table(graph, "distance_bias", parameters.distance_bias),
            "c2p": region.table(of_keys=False),
            "p2c": region.table(of_keys=True),
            "buckets": _table(graph, "buckets", parameters.buckets),
        },
        parameters.attributes(),
        [region.output],
        name=name_in_scope(at, "TextAttention"),
    )


def _table(graph: GraphEditor, name: str, table: np.ndarray | None) -> ir.Value | None:
    return None if table is None else shared_table(graph, name, table)


def _take_texts(model: ir.Model, graph: GraphEditor, attentions: list[ir.Node]) -> None:
    """Adds the input, where all but the attentions works token by token.

    Raises:
        Refusal: A node does not.
    """
    tables, heads = _other_nodes(model)
    begins = graph.constant(TEXT_BEGINS, np.zeros(1, np.int64))
    begins.shape = ir.Shape(["begins"])
    model.graph.inputs.append(begins)
    for node in attentions:
        graph.connect(node, "text_begins", begins)
    sums = [_running_sum(node) for node in tables]
    for counter in dict.fromkeys(filter(None, sums)):
        _sum_each_text(Expansion(graph, counter), begins)
    for node in (table for table, counter in zip(tables, sums, strict=True) if counter is None):
        index = node.inputs[1]
        assert index is not None
        if not _counting(index):
            index = _counted(Expansion(graph, node), index)
        name = f"{node.name}/Sub"
        output = ir.Value(name=f"{name}_output_0")
        new = ir.Node("", "Sub", [index, begins], outputs=[output], name=name)
        model.graph.insert_before(node, new)
        node.replace_input_with(1, output)
    for head in heads:
        rows_of_texts(graph, head, begins, attentions[0].attributes["num_heads"].as_int())
    remove_unused(model)
    model.graph.sort()


def _other_nodes(model: ir.Model) -> tuple[list[ir.Node], list[TextHead]]:
    """Lookups of positions, and what makes one row of the tokens of a text.

    Raises:
        Refusal: A node that activations flow through does not work token by token.
    """
    stream: set[ir.Value] = set()
    tables, heads = [], []
    inside: set[ir.Node] = set()
    for node in model.graph:
        inputs = operands(node)
        if node in inside:
            stream.update(node.outputs)
            continue
        if node.op_type == "Gather" and node.domain == "" and rank(inputs[0]) == 2:
            if constant(inputs[0]) is None:
                raise Refusal(f"{node.name} looks something up in what is computed")
            stream.update(node.outputs)
            index = inputs[1]
            if index.is_graph_input() and index.name in (_IDS, _TYPES):
                continue
            if not _counting(index) and _slice_of_numbers(index) is None:
                raise Refusal(f"positions of {node.name} come from a table of some length")
            tables.append(node)
        elif node.domain == DOMAIN and node.op_type == "BlockGather":
            stream.update(node.outputs)
        elif not stream.isdisjoint(inputs):
            if (head := text_head(model, node)) is not None:
                heads.append(head)
                inside.update(head.nodes)
            elif not _of_tokens(node, stream):
                raise Refusal(f"{node.name} ({node.op_type}) may mix tokens")
            stream.update(node.outputs)
    return tables, heads


def _counting(index: ir.Value) -> list[ir.Node]:
    """The nodes that count an index; none where it is constant."""
    nodes = (each.producer() for each in walk([index], before))
    return [node for node in nodes if node is not None and node.op_type in _COUNTS]


def _running_sum(table: ir.Node) -> ir.Node | None:
    """The CumSum that counts the positions of a lookup: tokens that are not padding.

    None where positions are counted by place.

    Raises:
        Refusal: Positions are counted in another way as well, or along another axis.
    """
    counting = _counting(operands(table)[1])
    found = [node for node in counting if node.op_type == "CumSum"]
    if not found:
        return None
    tokens, along = operands(found[0])
    axis = constant(along)
    by_row = rank(tokens) == 2 and axis is not None and int(axis.reshape(())) in (1, -1)
    if len(counting) > 1 or not by_row or found[0].attributes.get_int("reverse", 0) != 0:
        raise Refusal(f"positions of {table.name} are counted in more than one way")
    return found[0]


def _sum_each_text(new: Expansion, begins: ir.Value) -> None:
    """Lets a CumSum c of x begin anew with each text: c'[t] = c[t] - Σ x[u] for u < begins[t]."""
    inputs, like = operands(new.node), new.node.outputs[0]
    exclusive = new.node.attributes.get_int("exclusive", 0)
    before = new.op("CumSum", inputs, {"exclusive": 1}, like)
    first = new.op("Gather", [before, begins], {"axis": 1})
    total = new.op("CumSum", inputs, {"exclusive": exclusive}, like)
    new.finish((like, new.op("Sub", [total, first])))


def _slice_of_numbers(index: ir.Value) -> ir.Node | None:
    """The Slice that takes the first numbers of a table 0, 1, 2, … ``[1, N]``, one for each token.

    None where an index is something else.
    """
    node = producer(index, "Slice")
    if node is None or len(node.inputs) < 4:
        return None
    table, begin, end, axis = (None if v is None else constant(v) for v in node.inputs[:4])
    counts = table is not None and table.ndim == 2 and np.array_equal(table, [range(table.size)])
    along = axis is not None and axis.size == 1 and int(axis.reshape(())) in (1, -1)
    from_zero = begin is not None and not begin.any()
    steps = constant(node.inputs[4]) if len(node.inputs) > 4 and node.inputs[4] else None
    by_one = len(node.inputs) < 5 or (steps is not None and steps.tolist() == [1])
    return node if counts and along and from_zero and by_one and end is None else None


def _counted(new: Expansion, index: ir.Value) -> ir.Value:
    """Counts what a table of numbers says, so that a row may be longer than the table."""
    cut = _slice_of_numbers(index)
    assert cut is not None
    zero, one = (new.graph.constant(f"position.{n}", np.array(n)) for n in (0, 1))
    length = new.op("Squeeze", [cut.inputs[2]])
    numbers = new.op("Range", [zero, length, one])
    return new.op("Unsqueeze", [numbers, new.graph.constant("position.axis", np.array([0]))])


def _of_tokens(node: ir.Node, stream: set[ir.Value]) -> bool:
    """Whether a node works on the last dimension only, or element by element."""
    if node.domain == DOMAIN:
        return node.op_type in _OF_TOKENS
    if node.op_type in ("MatMul", "Gemm"):
        weight = operands(node)[1]
        return weight not in stream and rank(weight) == 2
    if node.op_type == "LayerNormalization":
        return node.attributes.get_int("axis", -1) == -1
    if node.op_type not in _ELEMENTWISE:
        return False
    others = [value for value in operands(node) if value not in stream]
    return all((constant(v) is not None and (rank(v) or 0) <= 1) or _one_row(v) for v in others)


def _one_row(value: ir.Value) -> bool:
    """Whether a constant has one row, that all tokens share."""
    array = constant(value)
    return array is not None and array.size == (array.shape[-1] if array.ndim else 1)
