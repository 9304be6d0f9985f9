"""Finds the soft cap of the logits:  logits = c · tanh(head / c)."""

from __future__ import annotations

import math

import onnx_ir as ir

from tamiz_passes.values import LAYOUT, operands, producer, scalar


def logit_tanh(model: ir.Model) -> ir.Node | None:
    """The Tanh of which the graph's output ``logits`` is a multiple."""
    return _outer(model)[0]


def logit_cap(model: ir.Model) -> float:
    """c of the graph's output ``logits``; 0 where no soft cap computes it."""
    tanh, outside = _outer(model)
    if tanh is None:
        return 0.0
    _, inside = _factor(operands(tanh)[0])
    return outside if outside > 0 and math.isclose(outside * inside, 1, rel_tol=1e-6) else 0.0


def _outer(model: ir.Model) -> tuple[ir.Node | None, float]:
    logits = next((value for value in model.graph.outputs if value.name == "logits"), None)
    value, factor = _factor(logits)
    return producer(value, "Tanh"), factor


def _factor(value: ir.Value | None) -> tuple[ir.Value | None, float]:
    """Goes back over layout changes and products with constants; returns their product, too."""
    factor = 1.0
    while (node := producer(value, "Mul", "Div", "Cast", *LAYOUT)) is not None:
        first, *others = operands(node)
        value = first
        if node.op_type not in ("Mul", "Div"):
            continue
        number = scalar(others[0])
        if number is None and node.op_type == "Mul":
            number, value = scalar(first), others[0]
        if not number:
            return node.outputs[0], factor
        factor *= number if node.op_type == "Mul" else 1 / number
    return value, factor
