"""Writes activations of feed-forward blocks as standard ops.

silu          x σ(x)
quick_gelu    x σ(1.702 x)
gelu          x/2 (1 + erf(x / √2))
gelu_tanh     x σ(2 u), u = √(2/π) (x + 0.044715 x³)
relu, relu2   max(x, 0), and its square
xielu         α_p x² + β x where x > 0, else α_n (exp(min(x, ε)) − 1 − x) + β x
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import onnx_ir as ir

from tamiz.api.ports import attribute_of
from tamiz.survey.standard.nodes import Nodes


def activated(nodes: Nodes, x: ir.Value) -> ir.Value:
    """What the activation of a tamiz.SwiGLU gives.

    Args:
        nodes: At this op, whose attributes say which.
        x: What it takes.
    """
    return _ACTIVATIONS[attribute_of(nodes.at, "activation")](nodes, x)


def _silu(nodes: Nodes, x: ir.Value) -> ir.Value:
    return nodes.op("Mul", x, nodes.op("Sigmoid", x))


def _quick_gelu(nodes: Nodes, x: ir.Value) -> ir.Value:
    slope = nodes.op("Mul", x, nodes.floats(1.702))
    return nodes.op("Mul", x, nodes.op("Sigmoid", slope))


def _gelu(nodes: Nodes, x: ir.Value) -> ir.Value:
    part = nodes.op("Erf", nodes.op("Div", x, nodes.floats(math.sqrt(2))))
    raised = nodes.op("Mul", x, nodes.op("Add", part, nodes.floats(1.0)))
    return nodes.op("Mul", raised, nodes.floats(0.5))


def _gelu_tanh(nodes: Nodes, x: ir.Value) -> ir.Value:
    cubed = nodes.op("Mul", nodes.op("Mul", x, x), x)
    inner = nodes.op("Add", x, nodes.op("Mul", cubed, nodes.floats(0.044715)))
    doubled = nodes.op("Mul", inner, nodes.floats(2 * math.sqrt(2 / math.pi)))
    return nodes.op("Mul", x, nodes.op("Sigmoid", doubled))


def _relu(nodes: Nodes, x: ir.Value) -> ir.Value:
    return nodes.op("Relu", x)


def _relu2(nodes: Nodes, x: ir.Value) -> ir.Value:
    positive = nodes.op("Relu", x)
    return nodes.op("Mul", positive, positive)


def _xielu(nodes: Nodes, x: ir.Value) -> ir.Value:
    alpha_p, alpha_n, beta, epsilon = (
        nodes.floats(attribute_of(nodes.at, name))
        for name in ("alpha_p", "alpha_n", "beta", "epsilon")
    )
    above = nodes.op("Mul", nodes.op("Mul", x, x), alpha_p)
    grown = nodes.op("Sub", nodes.op("Exp", nodes.op("Min", x, epsilon)), nodes.floats(1.0))
    below = nodes.op("Mul", nodes.op("Sub", grown, x), alpha_n)
    bent = nodes.op("Where", nodes.op("Greater", x, nodes.floats(0.0)), above, below)
    return nodes.op("Add", bent, nodes.op("Mul", x, beta))


_ACTIVATIONS: Mapping[str, Callable[[Nodes, ir.Value], ir.Value]] = {
    "": _silu,
    "silu": _silu,
    "quick_gelu": _quick_gelu,
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": _relu,
    "relu2": _relu2,
    "xielu": _xielu,
}
