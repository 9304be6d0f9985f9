"""Activations of feed-forward blocks: their names in sources, and their ONNX nodes.

Names are those of transformers; several of them are one function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, Protocol

import numpy as np
import onnx_ir as ir

SILU, GELU_TANH, RELU2, XIELU = "silu", "gelu_pytorch_tanh", "relu2", "xielu"
#: Of gpt-oss, which calls it silu: quick_gelu(min(gate, 7)) · (clip(up, -7, 7) + 1).
CLAMPED, CLAMP = "clamped_quick_gelu", 7.0


class Builder(Protocol):
    """What adds nodes to a graph."""

    def op(self, op_type: str, name: str, *inputs: ir.Value, **attrs: Any) -> ir.Value:
        """Adds a node; returns its output."""

    def constant(self, value: Any, dtype: type = ...) -> ir.Value:
        """The initializer that holds a value."""

    def weight(self, name: str, part: str = ...) -> ir.Value:
        """The constant of a module."""


def _silu(of: Builder, name: str, x: ir.Value) -> ir.Value:
    return of.op("Mul", f"{name}/Mul", x, of.op("Sigmoid", f"{name}/Sigmoid", x))


def _gelu_tanh(of: Builder, name: str, x: ir.Value) -> ir.Value:
    """x / 2 · (1 + tanh(sqrt(2/π) · (x + 0.044715 x³)))."""

    def number(value: float) -> ir.Value:
        return of.constant(value, np.float32)

    cube = of.op("Pow", f"{name}/Pow", x, number(3.0))
    cube = of.op("Mul", f"{name}/Mul", cube, number(0.044715))
    inner = of.op("Add", f"{name}/Add", x, cube)
    inner = of.op("Mul", f"{name}/Mul_1", inner, number((2 / np.pi) ** 0.5))
    tanh = of.op("Tanh", f"{name}/Tanh", inner)
    half = of.op("Mul", f"{name}/Mul_2", x, number(0.5))
    return of.op("Mul", f"{name}/Mul_3", half, of.op("Add", f"{name}/Add_1", tanh, number(1.0)))


def _gelu(of: Builder, name: str, x: ir.Value) -> ir.Value:
    """x / 2 · (1 + erf(x / sqrt(2)))."""
    scaled = of.op("Div", f"{name}/Div", x, of.constant(2**0.5, np.float32))
    error = of.op("Erf", f"{name}/Erf", scaled)
    half = of.op("Mul", f"{name}/Mul", x, of.constant(0.5, np.float32))
    one = of.constant(1.0, np.float32)
    return of.op("Mul", f"{name}/Mul_1", half, of.op("Add", f"{name}/Add", error, one))


def _quick_gelu(of: Builder, name: str, x: ir.Value) -> ir.Value:
    scaled = of.op("Mul", f"{name}/Mul", x, of.constant(1.702, np.float32))
    return of.op("Mul", f"{name}/Mul_1", x, of.op("Sigmoid", f"{name}/Sigmoid", scaled))


def _relu2(of: Builder, name: str, x: ir.Value) -> ir.Value:
    rectified = of.op("Relu", f"{name}/Relu", x)
    return of.op("Mul", f"{name}/Mul", rectified, rectified)


def _relu6(of: Builder, name: str, x: ir.Value) -> ir.Value:
    low, high = (of.constant(value, np.float32) for value in (0.0, 6.0))
    return of.op("Clip", f"{name}/Clip", x, low, high)


def _xielu(of: Builder, name: str, x: ir.Value) -> ir.Value:
    """See `xielu_weights`: x² α_p, or (exp(min(x, ε)) - 1 - x) α_n where x ≤ 0, and x β."""
    alpha_p, alpha_n, beta, epsilon = (
        of.weight(name, part) for part in ("alpha_p", "alpha_n", "beta", "eps")
    )
    zero, one = (of.constant(number, np.float32) for number in (0.0, 1.0))
    above = of.op("Mul", f"{name}/Mul", x, x)
    above = of.op("Mul", f"{name}/Mul_1", above, alpha_p)
    bent = of.op("Exp", f"{name}/Exp", of.op("Min", f"{name}/Min", x, epsilon))
    bent = of.op("Sub", f"{name}/Sub_1", of.op("Sub", f"{name}/Sub", bent, one), x)
    below = of.op("Mul", f"{name}/Mul_2", bent, alpha_n)
    positive = of.op("Greater", f"{name}/Greater", x, zero)
    chosen = of.op("Where", f"{name}/Where", positive, above, below)
    return of.op("Add", f"{name}/Add", chosen, of.op("Mul", f"{name}/Mul_3", x, beta))


def _one(op_type: str) -> Callable[[Builder, str, ir.Value], ir.Value]:
    return lambda of, name, x: of.op(op_type, f"{name}/{op_type}", x)


#: By name in transformers: writes the nodes under a name; returns f(x).
ACTIVATIONS: dict[str, Callable[[Builder, str, ir.Value], ir.Value]] = {
    SILU: _silu,
    GELU_TANH: _gelu_tanh,
    "gelu": _gelu,
    "quick_gelu": _quick_gelu,
    "relu": _one("Relu"),
    RELU2: _relu2,
    "relu6": _relu6,
    "mish": _one("Mish"),
    "sigmoid": _one("Sigmoid"),
    "tanh": _one("Tanh"),
    XIELU: _xielu,
}


def gated(of: Builder, name: str, activation: str, gate: ir.Value, up: ir.Value) -> ir.Value:
    """f(gate) · up, or the clamped one, which adds 1 to up.

    Args:
        of: The graph.
        name: What begins the names of the nodes of a feed-forward block.
        activation: f, of `ACTIVATIONS`, or `CLAMPED`.
        gate: Its argument.
        up: What is multiplied by it.
    """
    if activation != CLAMPED:
        hidden = ACTIVATIONS[activation](of, f"{name}/act_fn", gate)
        return of.op("Mul", f"{name}/Mul", hidden, up)
    low, high, one = (of.constant(value, np.float32) for value in (-CLAMP, CLAMP, 1.0))
    gate = of.op("Min", f"{name}/act_fn/Min", gate, high)
    up = of.op("Clip", f"{name}/act_fn/Clip", up, low, high)
    hidden = _quick_gelu(of, f"{name}/act_fn", gate)
    return of.op("Mul", f"{name}/Mul", hidden, of.op("Add", f"{name}/act_fn/Add", up, one))


#: Other names in transformers' configurations.
HF_NAMES = {
    **{name: name for name in ACTIVATIONS if name != XIELU},  # which needs trained numbers
    "swish": SILU,
    "gelu_python": "gelu",
    **dict.fromkeys(("gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"), GELU_TANH),
}
#: What ``config.json`` says in place of a name of its own.
STATED = {CLAMPED: SILU}
#: Names of the option ``--activation``.
OPTION_NAMES = {"gelu_tanh": GELU_TANH} | {
    name: name for name in (SILU, "gelu", "quick_gelu", "relu", RELU2)
}
#: Names in GGUF. llama.cpp computes GELU by tanh, whatever the name.
GGUF_NAMES = HF_NAMES | {
    "gelu": GELU_TANH,
    "geglu": GELU_TANH,
    "swiglu": SILU,
    "reglu": "relu",
}


def chosen_activation(
    given: str | None,
    default: str,
    stated: str | None,
    names: Mapping[str, str],
    reject: Callable[[object, str], NoReturn],
) -> str:
    """The activation of a source: what it states, else what is given, else its architecture's.

    Args:
        given: The name that the caller gives, of `OPTION_NAMES`; None for none.
        default: The architecture's; empty where its models have several.
        stated: The name that the source states; None where it states none.
        names: What the source's names stand for.
        reject: Raises the error about what is found and what is expected.

    Raises:
        TamizError: The source states a name that is unknown, another one than is given, or none
            where the architecture has no default.
    """
    if stated is not None and stated not in names:
        reject(stated, f"one of {', '.join(names)}")
    wanted = None if given is None else OPTION_NAMES[given]
    if stated is None:
        if not (wanted or default):
            reject("nothing", f"one of {', '.join(OPTION_NAMES)}, or --activation")
        return wanted or default
    if wanted not in (None, names[stated]):
        reject(stated, f"{given}, as --activation says, or no --activation")
    return names[stated]
