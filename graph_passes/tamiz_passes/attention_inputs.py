"""Inputs of an attention op: heads joined, and tables that layers share."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, GraphEditor
from tamiz_passes.values import constant, last_dim, operands, producer, rank


def joined_heads(graph: GraphEditor, value: ir.Value) -> ir.Value:
    """`value` as ``[B, S, H·D]``; a norm of split heads becomes one that works on joined heads."""
    norm = _head_norm(value)
    if norm is None:
        return value
    split = producer(norm.inputs[0], "Reshape")
    assert split is not None
    joined = operands(split)[0]
    inputs, output = [joined, norm.inputs[1]], graph.value(f"{value.name}.joined", joined)
    epsilon = {"epsilon": norm.attributes["epsilon"].as_float()}
    graph.insert(norm, norm.name or "", "RMSNorm", inputs, epsilon, [output], after=True)
    return output


def _head_norm(value: ir.Value) -> ir.Node | None:
    """The norm of split heads that `value` is, in one form or the other."""
    if rank(value) == 4:
        return value.producer()
    rejoined = producer(value, "Reshape")
    norm = rejoined.inputs[0].producer() if rejoined is not None and rejoined.inputs[0] else None
    if norm is None or (norm.domain, norm.op_type) != (DOMAIN, "RMSNorm"):
        return None
    split = producer(norm.inputs[0], "Reshape")
    before = split.inputs[0] if split is not None else None
    same = before is not None and rank(before) == 3 and last_dim(before) == last_dim(value)
    return norm if same and len(norm.inputs) == 2 and last_dim(value) is not None else None


def shared_table(graph: GraphEditor, stem: str, numbers: np.ndarray) -> ir.Value:
    """The constant of these numbers, shared by the layers that have the same."""
    count = 0
    while True:
        name = stem + (f".{count}" if count else "")
        value = graph.constant(name, numbers)
        existing = constant(value)
        if existing is not None and np.array_equal(existing, numbers):
            return value
        count += 1
