"""What makes one row ``[B, H]`` of the tokens of each text: the first one, the last one, or a mean.

Texts that share a row of the batch get a row each. `text_begins` says where they begin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor
from tamiz_passes.expansion import Expansion
from tamiz_passes.probe import MASK_INPUT, Case, Probe
from tamiz_passes.values import Refusal, last_dim, operands, rank, scalar

#: Masks of rows that are padded on the right.
_MASKS = ([[1, 1, 1, 1, 1]], [[1, 1, 1], [1, 0, 0], [1, 1, 0]])


class Kind(Enum):
    """How a row is made."""

    FIRST = "first token"
    LAST = "last token"
    MEAN = "mean over the tokens"


@dataclass(frozen=True)
class TextHead:
    """A node that gives a row of each text.

    Attributes:
        kind: How.
        tokens: The hidden states ``[B, S, H]``.
        nodes: The nodes between them and the rows; the last one gives the rows.
    """

    kind: Kind
    tokens: ir.Value
    nodes: tuple[ir.Node, ...]


def text_head(model: ir.Model, node: ir.Node) -> TextHead | None:
    """The head that begins with a node; None where none does.

    What a row is made of is not read off the nodes but found by running them.
    """
    given = operands(node)
    if node.domain != "" or not given or rank(given[0]) != 3:
        return None
    if node.op_type == "Gather" and node.attributes.get_int("axis", 0) == 1:
        return TextHead(Kind.FIRST, given[0], (node,)) if scalar(given[1]) == 0 else None
    if node.op_type == "GatherND":
        head = TextHead(Kind.LAST, given[0], (node,))
    elif node.op_type == "Mul":
        summed = _only_user(node)
        divided = _only_user(summed)
        if summed is None or divided is None:
            return None
        if (summed.op_type, divided.op_type) != ("ReduceSum", "Div"):
            return None
        head = TextHead(Kind.MEAN, given[0], (node, summed, divided))
    else:
        return None
    return head if _is(model, head) else None


def _only_user(node: ir.Node | None) -> ir.Node | None:
    users = [] if node is None else list(node.outputs[0].consumers())
    return users[0] if len(users) == 1 else None


def _is(model: ir.Model, head: TextHead) -> bool:
    """Whether random tokens become what the head's kind says."""
    width, output = last_dim(head.tokens), head.nodes[-1].outputs[0]
    if width is None:
        return False
    random = np.random.default_rng(0)
    try:
        probe = Probe(model, [output], [head.tokens])
        for rows in _MASKS:
            mask = np.array(rows, np.int64)
            case = Case(mask, np.tile(np.arange(mask.shape[1]), (len(mask), 1)))
            x = random.standard_normal((*mask.shape, width), np.float32)
            (found,) = probe.run([output], case, {head.tokens: x})
            tokens = mask.sum(axis=1)
            expected = x[np.arange(len(mask)), tokens - 1]
            if head.kind is Kind.MEAN:
                expected = (x * mask[..., None]).sum(axis=1) / tokens[:, None]
            if found.shape != expected.shape or not np.allclose(found, expected, atol=1e-5):
                return False
    except Refusal:
        return False
    return True


def rows_of_texts(graph: GraphEditor, head: TextHead, begins: ir.Value, heads: int) -> None:
    """Lets a head make a row of every text, also of those that share a row of the batch.

    Args:
        graph: The graph.
        head: The head.
        begins: The input `text_begins`.
        heads: Heads of the model's attention, among which a mean is shared out.
    """
    new = Expansion(graph, head.nodes[-1])
    tokens = head.tokens
    if head.kind is Kind.MEAN:
        tokens = _mean(new, tokens, begins, heads)
    row = _last(new, head, begins) if head.kind is Kind.LAST else _first(new, tokens, begins)
    new.finish((head.nodes[-1].outputs[0], row))


def _integers(new: Expansion, *numbers: int) -> ir.Value:
    name = "text." + "_".join(map(str, numbers))
    return new.graph.constant(name, np.array(numbers, np.int64))


def _column(new: Expansion, tokens: ir.Value) -> ir.Value:
    """0, 1, 2, … ``[S]``."""
    length = new.op("Squeeze", [new.op("Shape", [tokens], {"start": 1, "end": 2})])
    zero, one = (new.graph.constant(f"text.{n}d", np.array(n, np.int64)) for n in (0, 1))
    return new.op("Range", [zero, length, one])


def _first(new: Expansion, tokens: ir.Value, begins: ir.Value) -> ir.Value:
    starts = new.op("Equal", [_column(new, tokens), begins])
    index = new.op("Squeeze", [new.op("NonZero", [starts]), _integers(new, 0)])
    picked = new.op("Gather", [tokens, index], {"axis": 1})
    width = new.op("Shape", [tokens], {"start": 2, "end": 3})
    shape = new.op("Concat", [_integers(new, -1), width], {"axis": 0})
    return new.op("Reshape", [picked, shape])


def _last(new: Expansion, head: TextHead, begins: ir.Value) -> ir.Value:
    """The last tokens of the rows, and those before the beginning of another text."""
    last, column = operands(head.nodes[0])[1], _column(new, head.tokens)
    starts = new.op("Equal", [column, begins])
    after = new.op("Slice", [starts, _integers(new, 1), _integers(new, 1 << 31), _integers(new, 0)])
    none = new.graph.constant("text.none", np.array([False]))
    next_begins = new.op("Concat", [after, none], {"axis": 0})
    ends = new.op("Or", [new.op("Equal", [column, last]), next_begins])
    places = new.op("Transpose", [new.op("NonZero", [ends])], {"perm": [1, 0]})
    return new.op("GatherND", [head.tokens, places])


def _mean(new: Expansion, tokens: ir.Value, begins: ir.Value, heads: int) -> ir.Value:
    """The mean over its text at every token: attention whose scores are all 0."""
    mask, width = new.graph.input(MASK_INPUT), last_dim(tokens)
    assert mask is not None
    assert width is not None
    zero = new.op("Sub", [tokens, tokens], like=tokens)
    given = [zero, zero, tokens, mask, begins]
    shared = {"num_heads": math.gcd(heads, width)}
    return new.op("TextAttention", given, shared, tokens, domain=DOMAIN)
