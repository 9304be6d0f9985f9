"""Walks an exported attention from its Softmax to its borders.

    scores  = scale · (w · rotate(q)) · rotate(k)ᵀ   (w, a weight of each element, or none)
    scores  = c · tanh(scores / c)             (a soft cap c, or none)
    scores  = scores + mask
    y       = softmax(scores) · v              (or with sinks, `sinks`)
    present = concat(past, rotate(k) | v)

    rotate(x) = x · cos + concat(−x₂, x₁) · sin,   x = concat(x₁, x₂)   (half-split)

The walk only says where things are; `attention_proof` decides whether they mean what is written
here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations

import onnx_ir as ir

from tamiz.api import DOMAIN
from tamiz_passes.rotation import Rotation, both_or_none, rotation_of
from tamiz_passes.sinks import Sinks, scores_and_sinks
from tamiz_passes.values import (
    LAYOUT_OR_CAST,
    Refusal,
    constant,
    is_scalar,
    last_dim,
    operands,
    producer,
    rank,
)

#: A scalar, and the exponent with which it is a factor.
Factor = tuple[ir.Value, int]


@dataclass(frozen=True)
class Cache:
    """A past that grows: present = concat(past, new) over the positions ``[B, H, P, D]``.

    The past of a cache to which another attention has appended is that one's present.
    """

    past: ir.Value
    present: ir.Value | None = None
    new: ir.Value | None = None


@dataclass(frozen=True)
class Mask:
    """A mask on the scores: added to them, or the condition (inverted or not) that keeps them."""

    value: ir.Value
    additive: bool
    keeps: bool = True


@dataclass
class Region:
    """Where the parts of one attention are.

    Attributes:
        output: y ``[B, S, Hq·D]``.
        q, k, v: What the heads are made of: ``[B, S, H·D]``, or ``[B, S, H, D]`` after a norm.
            None where they are in the cache already, and v where values are the keys.
        keys, values: The two caches; values is None where they are the keys.
        masks: Masks on the scores, in no order.
        factors: Scalars that multiply (exponent 1) or divide (−1) the scores.
        cap: Such scalars that work on the tanh of the scores; None without a soft cap.
        rotations: Of q and of k; empty without rotary embedding.
        sinks: The sinks of its heads; None without.
        query_weight: The constant ``[D]`` that rotated queries are multiplied by; None without.
        fused: The op that computes all of it but what is before q and k, where it is one.
    """

    output: ir.Value
    q: ir.Value
    k: ir.Value | None
    v: ir.Value | None
    keys: Cache
    values: Cache | None
    masks: list[Mask] = field(default_factory=list)
    factors: list[Factor] = field(default_factory=list)
    cap: list[Factor] | None = None
    rotations: list[Rotation] = field(default_factory=list)
    sinks: Sinks | None = None
    query_weight: ir.Value | None = None
    fused: ir.Node | None = None

    @property
    def sources(self) -> list[ir.Value]:
        """What the heads of this run's tokens are made of: q, k and v as far as there are."""
        return [value for value in (self.q, self.k, self.v) if value is not None]

    @property
    def pasts(self) -> list[ir.Value]:
        """The pasts of the caches."""
        return [self.keys.past, *([] if self.values is None else [self.values.past])]

    @property
    def results(self) -> list[ir.Value]:
        """y, and the presents."""
        presents = [cache.present for cache in (self.keys, self.values) if cache is not None]
        return [self.output, *(value for value in presents if value is not None)]


def find_region(softmax: ir.Node) -> Region:
    """Walks to the borders of the attention around `softmax`.

    Raises:
        Refusal: Where the structure is another one.
    """
    scores, sinks = scores_and_sinks(operands(softmax)[0])
    weighted = weighted_sum(softmax, cut=sinks is not None)
    masks: list[Mask] = []
    product, factors, cap = scores_behind(scores, masks)
    query, key = operands(product)
    query, query_weight = _weighted(skip_scaling(query, factors), factors)
    keys = cache_of(skip_scaling(key, factors), "key")
    values = cache_of(skip_scaling(operands(weighted)[1], []), "value")
    turned = rotation_of(query)
    if keys.new is None:
        rotations = [] if turned is None else [turned]
    else:
        rotations = both_or_none(turned, rotation_of(keys.new))
    k = rotations[1].source if len(rotations) > 1 else keys.new
    v = None if values == keys else values.new
    return Region(
        output=joined_output(weighted.outputs[0]),
        q=heads_source(query if turned is None else turned.source),
        k=None if k is None else heads_source(k),
        v=None if v is None else heads_source(v),
        keys=keys,
        values=None if values == keys else values,
        masks=masks,
        factors=factors,
        cap=cap,
        rotations=rotations,
        sinks=sinks,
        query_weight=query_weight,
    )


def weighted_sum(softmax: ir.Node, *, cut: bool = False) -> ir.Node:
    """The MatMul of the probabilities with the values; `cut`: without the columns of sinks."""
    axis = softmax.attributes.get("axis")
    if axis is not None and axis.as_int() not in (-1, 3, 4):
        raise Refusal(f"Softmax works on axis {axis.as_int()}, expected the last one")
    value = softmax.outputs[0]
    while True:
        if value.is_graph_output():
            raise Refusal("the probabilities are an output of the graph")
        uses = [n for n in value.consumers() if n.op_type not in ("IsNaN", "Shape")]
        if len(uses) != 1:
            raise Refusal(f"expected one use of the probabilities, found {len(uses)}")
        node = uses[0]
        if node.graph is not softmax.graph:
            raise Refusal("the probabilities are used in a branch or a loop")
        if node.op_type == "MatMul" and node.inputs[0] is value:
            return node
        repairs_nan = node.op_type == "Where" and producer(node.inputs[0], "IsNaN") is not None
        cuts = cut and node.op_type == "Slice"
        if node.op_type not in ("Cast", "Dropout", "Reshape") and not (repairs_nan or cuts):
            raise Refusal(f"expected MatMul after Softmax, found {node.op_type}")
        value = node.outputs[0]


def joined_output(value: ir.Value) -> ir.Value:
    """Follows the layout changes of the weighted sum to the first tensor of rank 3."""
    while rank(value) != 3:
        uses = [n for n in value.consumers() if n.op_type != "Shape"]
        inside = len(uses) == 1 and uses[0].graph is value.graph and not value.is_graph_output()
        if not inside or uses[0].op_type not in LAYOUT_OR_CAST:
            raise Refusal("the output's heads are not joined into [batch, sequence, hidden]")
        value = uses[0].outputs[0]
    return value


def scores_behind(
    value: ir.Value, masks: list[Mask]
) -> tuple[ir.Node, list[Factor], list[Factor] | None]:
    """Goes back from the Softmax to the MatMul of query and key, noting masks.

    Returns the MatMul, the factors of its product, and those of a tanh of it (see `Region`).
    """
    factors: list[Factor] = []
    cap: list[Factor] | None = None
    while True:
        value = skip_scaling(value, factors)
        node = producer(value, "MatMul", "Add", "Where", "Tanh")
        if node is None:
            raise Refusal(f"expected query times key before Softmax, found {_source(value)}")
        if node.op_type == "MatMul":
            return node, factors, cap
        if cap is not None:
            raise Refusal(
                "expected query times key, times numbers, inside of the soft cap (Tanh), found "
                + node.op_type
            )
        if node.op_type == "Tanh":
            factors, cap, value = [], factors, operands(node)[0]
        else:
            value = _masked(node, masks)


def _masked(node: ir.Node, masks: list[Mask]) -> ir.Value:
    """Notes the mask of an Add or a Where, and returns the scores it masks."""
    condition, first, second = operands(node)[0], *operands(node)[-2:]
    if node.op_type == "Where":
        keeps = constant(second) is not None
        masks.append(Mask(condition, additive=False, keeps=keeps))
        return first if keeps else second
    scores, mask = (first, second) if _leads_to_matmul(first) else (second, first)
    if not _leads_to_matmul(scores):
        raise Refusal(
            "expected query times key plus a mask before Softmax, found "
            f"{_source(first)} plus {_source(second)}"
        )
    masks.append(Mask(mask, additive=True))
    return scores


def _source(value: ir.Value) -> str:
    """What computes a value, for a message."""
    node = skip_scaling(value, []).producer()
    return node.op_type if node is not None else "a graph input"


def _leads_to_matmul(value: ir.Value) -> bool:
    value = skip_scaling(value, [])
    node = producer(value, "MatMul", "Add", "Where", "Tanh")
    if node is None or node.op_type == "MatMul":
        return node is not None
    return any(_leads_to_matmul(v) for v in operands(node)[-2:])


def skip_scaling(value: ir.Value, factors: list[Factor]) -> ir.Value:
    """Goes back over layout changes and over Mul or Div by a scalar, which it notes.

    Stops at rank 3, where heads are joined.
    """
    while rank(value) != 3 or _merges_batches(value):
        node = producer(value, "Mul", "Div", *LAYOUT_OR_CAST)
        if node is None:
            return value
        if node.op_type in LAYOUT_OR_CAST:
            value = operands(node)[0]
            continue
        left, right = operands(node)
        if is_scalar(right):
            factors.append((right, 1 if node.op_type == "Mul" else -1))
            value = left
        elif is_scalar(left) and node.op_type == "Mul":
            factors.append((left, 1))
            value = right
        else:
            return value
    return value


def _weighted(query: ir.Value, factors: list[Factor]) -> tuple[ir.Value, ir.Value | None]:
    """The queries, or what makes them times a constant vector, and that vector."""
    node = producer(query, "Mul")
    for source, weight in permutations(operands(node)) if node is not None else ():
        numbers = constant(weight)
        if numbers is not None and numbers.shape == (last_dim(query),):
            return skip_scaling(source, factors), weight
    return query, None


def _merges_batches(value: ir.Value) -> bool:
    """Whether a value of rank 3 has batch and heads in one dimension: ``[B · H, T, D]``."""
    node = producer(value, "Reshape", "Transpose")
    if node is None:
        return False
    before = operands(node)[0]
    if node.op_type == "Transpose":
        return _merges_batches(before)
    size = last_dim(value)
    return rank(before) == 4 and size is not None and size == last_dim(before)


def cache_of(value: ir.Value, what: str) -> Cache:
    """The concatenation of past and new that `value` comes from, or another attention's."""
    owner = value.producer()
    if owner is not None and (owner.domain, owner.op_type) == (DOMAIN, "Attention"):
        return Cache(value)
    node = producer(value, "Concat")
    if node is None or len(node.inputs) != 2:
        raise Refusal(f"the {what} is not a past with new tokens appended: there is no KV cache")
    past, new = operands(node)
    present = node.outputs[0]
    if not past.is_graph_input() or not present.is_graph_output():
        raise Refusal(f"the {what}'s past and present are not an input and an output of the graph")
    if past.dtype != ir.DataType.FLOAT:
        raise Refusal(
            f"the {what}'s past is {past.dtype.name if past.dtype else 'unknown'}, expected FLOAT"
        )
    if rank(past) != 4 or node.attributes["axis"].as_int() not in (2, -2):
        raise Refusal(f"the {what}'s past is not [batch, heads, positions, head size]")
    return Cache(past, present, new)


def heads_source(value: ir.Value) -> ir.Value:
    """Goes back from heads ``[B, H, S, D]`` to what they are made of.

    That is the first tensor ``[B, S, H·D]`` (of a linear, or a part of one), or ``[B, S, H, D]``
    where a norm works on single heads.
    """
    while rank(value) != 3:
        node = value.producer()
        if node is not None and node.op_type == "RMSNorm":
            if producer(node.inputs[0], "Reshape") is None:
                raise Refusal("expected the norm of the heads right after the Reshape to heads")
            return value
        if node is None or node.domain != "" or node.op_type not in LAYOUT_OR_CAST:
            found = node.op_type if node is not None else "a graph input"
            raise Refusal(f"expected heads made of one linear's output, found {found}")
        value = operands(node)[0]
    return value


def width(value: ir.Value) -> int:
    """H·D of a value that `find_region` returned as q, k or v.

    Raises:
        Refusal: If the graph does not say it.
    """
    while rank(value) == 4:
        node = value.producer()
        if node is None:
            break
        value = operands(node)[0]
    size = last_dim(value)
    if rank(value) != 3 or size is None:
        raise Refusal(f"the width of {value.name} is not known")
    return size
