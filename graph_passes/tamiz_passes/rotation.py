"""Finds the rotary embedding of an attention's queries and keys.

    rotate(x) = x · cos + concat(−x₂, x₁) · sin,   x = concat(x₁, x₂)   (half-split)

It is written in primitive ops, or is one op RotaryEmbedding of either domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from tamiz_passes.values import (
    LAYOUT_OR_CAST,
    Refusal,
    is_scalar,
    operands,
    other_operand,
    producer,
)


@dataclass(frozen=True)
class Rotation:
    """What is rotated, and the tables it is multiplied by.

    Attributes:
        source: What is rotated.
        cos, sin: ``[..., S, R]``, computed from positions.
        fused: Whether they are constants ``[positions, R/2]`` instead, of which an op takes rows.
        halved: Whether they are computed and ``[B, S, R/2]``.
    """

    source: ir.Value
    cos: ir.Value
    sin: ir.Value
    fused: bool = False
    halved: bool = False


def both_or_none(query: Rotation | None, key: Rotation | None) -> list[Rotation]:
    """The rotations of query and key; none where neither is rotated.

    Raises:
        Refusal: Only one is.
    """
    found = [rotation for rotation in (query, key) if rotation is not None]
    if len(found) == 1:
        raise Refusal("only one of query and key is rotated")
    return found


def rotation_of(value: ir.Value) -> Rotation | None:
    """The rotary embedding that `value` ends with; None if it has none."""
    if (fused := rotary_op(value)) is not None:
        return fused
    partial = producer(value, "Concat")
    if partial is not None:
        value = operands(partial)[0]  # the first dimensions rotated, the others passed through
        if (fused := rotary_op(value)) is not None:
            return fused
    add = producer(value, "Add", "Sub")
    if add is None or not all(producer(v, "Mul") for v in add.inputs):
        if partial is not None:
            raise Refusal("rotary embedding: expected x·cos + rotated·sin on the first dimensions")
        return None
    first, second = (node for v in add.inputs if (node := producer(v, "Mul")) is not None)
    for straight, crossed in ((first, second), (second, first)):
        rotation = _products(straight, crossed)
        if rotation is not None and add.op_type == "Add":
            return rotation
    raise Refusal(
        "rotary embedding: expected x·cos + concat(−x₂, x₁)·sin (half-split); "
        "interleaved pairs are not supported"
    )


def behind_layout(value: ir.Value) -> ir.Value:
    """Goes back over layout changes, of any rank: heads may be joined or repeated."""
    while (node := producer(value, *LAYOUT_OR_CAST)) is not None and node.inputs[0] is not None:
        value = node.inputs[0]
    return value


def rotary_op(value: ir.Value) -> Rotation | None:
    """The rotary embedding that `value` ends with, where it is one op of either domain."""
    node = behind_layout(value).producer()
    if node is None or node.op_type != "RotaryEmbedding":
        return None
    if node.attributes.get_int("interleaved", 0):
        raise Refusal("it rotates interleaved pairs, expected halves (interleaved = 1)")
    positions, cos, sin = (1, 2, 3) if node.domain else (3, 1, 2)
    inputs = [*node.inputs, *[None] * 4]
    source, cosines, sines = inputs[0], inputs[cos], inputs[sin]
    if source is None or cosines is None or sines is None:
        raise Refusal("its rotary embedding lacks a table")
    computed = inputs[positions] is None
    return Rotation(source, cosines, sines, fused=not computed, halved=computed)


def _products(straight: ir.Node, crossed: ir.Node) -> Rotation | None:
    """Reads x·cos and concat(−x₂, x₁)·sin, with the factors in either order."""
    for rotated in operands(crossed):
        concat = producer(rotated, "Concat")
        if concat is None or len(concat.inputs) != 2:
            continue
        negated = producer(concat.inputs[0], "Neg")
        if negated is None:
            continue
        low, high = concat.inputs[1], negated.inputs[0]
        low_node, high_node = (producer(v, "Slice", "Split") for v in (low, high))
        if low_node is None or high_node is None:
            continue
        source = operands(low_node)[0]
        if source is operands(high_node)[0] and source in straight.inputs:
            return Rotation(
                source, other_operand(straight, source), other_operand(crossed, rotated)
            )
    return None


def angles_of(tables: Sequence[ir.Value]) -> list[ir.Value]:
    """The angles of rotary tables, which are cosines and sines by turns.

    Raises:
        Refusal: A table is not computed from angles.
    """
    nodes = [_table_of(v, op) for v, op in zip(tables, ("Cos", "Sin") * 2, strict=False)]
    return [operands(node)[0] for node in nodes]


def _table_of(value: ir.Value, op_type: str) -> ir.Node:
    """The Cos or Sin node that a rotary table comes from.

    Raises:
        Refusal: If the table is not computed so.
    """
    start = value
    while (node := producer(value, op_type, "Concat", "Mul", *LAYOUT_OR_CAST)) is not None:
        if node.op_type == op_type:
            return node
        inputs = operands(node)
        value = inputs[1] if node.op_type == "Mul" and is_scalar(inputs[0]) else inputs[0]
    raise Refusal(f"rotary embedding: {start.name} is not computed by {op_type}")
