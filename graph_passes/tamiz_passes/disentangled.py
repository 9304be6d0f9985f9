"""Scores of DeBERTa between contents and distances, as exporters write them.

    c2p = GatherElements(q · C, b)            p2c = GatherElements(k · P, bᵀ)ᵀ

with constants C and P ``[heads, D, columns]`` and the column b ``[S, S]`` of each query and key.
Both are added to the scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tamiz_passes.distance_bias import longest
from tamiz_passes.values import Refusal, constant, operands, producer, rank, walk

#: Longest text tried: a table of columns may end before.
_LONGEST = 1 << 10
_TURNED = [0, 1, 3, 2]


@dataclass(frozen=True)
class RelativeScores:
    """Where such scores are.

    Attributes:
        table: C or P.
        columns: b, or its transpose.
        of_keys: Whether they are of keys and positions, p2c.
    """

    table: ir.Value
    columns: ir.Value
    of_keys: bool


def relative_scores(value: ir.Value) -> RelativeScores | None:
    """The scores that a value is; None for another one."""
    turned = producer(value, "Transpose")
    if turned is not None:
        perm = turned.attributes.get("perm")
        if perm is None or list(perm.as_ints()) != _TURNED:
            return None
        value = operands(turned)[0]
    node = producer(value, "GatherElements")
    if node is None or node.attributes.get_int("axis", 0) not in (-1, 3):
        return None
    rows, columns = operands(node)
    product = producer(rows, "MatMul")
    table = operands(product)[1] if product is not None else None
    if table is None or rank(table) != 3 or constant(table) is None:
        return None
    return RelativeScores(table, columns, turned is not None)


def gathers_scores(value: ir.Value) -> bool:
    """Whether such scores, of any form, are a part of what is added to scores."""
    nodes = (each.producer() for each in walk([value], _float_operands))
    return any(node is not None and node.op_type == "GatherElements" for node in nodes)


def _float_operands(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [] if node is None else [v for v in operands(node) if v.dtype == ir.DataType.FLOAT]


def column_table(columns: Callable[[int], list[np.ndarray]]) -> np.ndarray:
    """The columns by distance, ``[2 reach + 1]`` of key - query; those at its ends hold beyond.

    Args:
        columns: Gives b ``[…, S, S]`` of each term in a text of some tokens.

    Raises:
        Refusal: They depend on more than the distance, or the terms have not the same.
    """
    length, found = longest(columns, _LONGEST)
    rows = [array.reshape(-1, length, length) for array in found]
    first = rows[0][0]
    table = np.concatenate([first[:0:-1, 0], first[0]])
    column = np.arange(length)
    expected = table[column - column[:, np.newaxis] + length - 1]
    if not all((array == expected).all() for array in rows):
        raise Refusal("scores of positions depend on more than the distance of tokens")
    return table.astype(np.int64)
