"""The way back through the ops of an encoder, in NumPy.

Each function takes a node, the values of the graph by name, in their own shapes, and what the loss
changes by with the node's output, and gives what it changes by with each of its inputs. Only inputs
that depend on a site count: masks, positions and shapes do not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamiz.survey import backward
from tamiz.survey.backward import UnknownOpError, product

if TYPE_CHECKING:
    import onnx_ir as ir

Float = NDArray[np.float32]
Values = Mapping[str, Float]
Gradients = list["Float | None"]

#: Ops whose outputs no loss depends on smoothly.
_STOPS = {"Shape", "Size", "ArgMax", "Equal", "Less", "Greater", "Not", "IsNaN"}
_ROOT = np.float32(2 / np.pi**0.5)


def dependent(nodes: Sequence[ir.Node], sites: Collection[str]) -> set[str]:
    """Names of the values that depend on a site.

    Args:
        nodes: In the order of the graph.
        sites: Names of the sites' nodes.
    """
    found: set[str] = set()
    for node in nodes:
        depends = node.name in sites or any(v is not None and v.name in found for v in node.inputs)
        if depends and node.op_type not in _STOPS:
            found.update(output.name for output in node.outputs if output.name is not None)
    return found


def back(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """The way back through one node.

    Raises:
        UnknownOpError: It is not known.
    """
    if product(node) or node.domain:
        return backward.back(node, values, given)
    known = _OPS.get(node.op_type)
    if known is None or given[0] is None:
        raise UnknownOpError(f"{node.op_type} {node.name}")
    return known[0](node, values, given[0])


def wanted(node: ir.Node) -> list[str]:
    """Names of the values that the way back through a node is computed from."""
    if product(node) or node.domain:
        return backward.wanted(node)
    _, indices = _OPS.get(node.op_type, (None, ()))
    return [
        name
        for i in indices
        if i < len(node.inputs) and (value := node.inputs[i]) is not None
        # Constants are read from the model.
        if value.const_value is None and (name := value.name) is not None
    ]


def _read(node: ir.Node, index: int, values: Values) -> Float:
    """An input: a constant of the model, or a value of the run."""
    value = node.inputs[index]
    assert value is not None
    if value.const_value is not None:
        return np.asarray(value.const_value.numpy(), np.float32)
    assert value.name is not None
    return values[value.name]


def _like(gradient: Float, shape: tuple[int, ...]) -> Float:
    """The sum over what an input of this shape was repeated along."""
    extra = gradient.ndim - len(shape)
    summed = gradient.sum(axis=tuple(range(extra))) if extra else gradient
    repeated = tuple(i for i, size in enumerate(shape) if size == 1 != summed.shape[i])
    return summed.sum(axis=repeated, keepdims=True) if repeated else summed


def _add(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a + b."""
    return [_like(g, _read(node, i, values).shape) for i in range(2)]


def _sub(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a - b."""
    a, b = (_read(node, i, values) for i in range(2))
    return [_like(g, a.shape), _like(-g, b.shape)]


def _mul(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a b, element by element."""
    a, b = (_read(node, i, values) for i in range(2))
    return [_like(g * b, a.shape), _like(g * a, b.shape)]


def _div(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a / b, element by element."""
    a, b = (_read(node, i, values) for i in range(2))
    of_b: Float = -g * a / (b * b)
    return [_like(g / b, a.shape), _like(of_b, b.shape)]


def _matmul(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a b, over the last two dimensions."""
    a, b = (_read(node, i, values) for i in range(2))
    of_a, of_b = g @ np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2) @ g
    return [_like(of_a, a.shape), _like(of_b, b.shape)]


def _reshaped(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y has the elements of x in their order."""
    return [g.reshape(_read(node, 0, values).shape)]


def _transpose(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x with its dimensions in another order."""
    order = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(g.ndim)[::-1]
    return [g.transpose(np.argsort(order))]


def _softmax(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = exp x / Σ exp x over one dimension."""
    axis, x = _axis(node), _read(node, 0, values)
    p = np.exp(x - x.max(axis=axis, keepdims=True))
    p /= p.sum(axis=axis, keepdims=True)
    return [p * (g - (g * p).sum(axis=axis, keepdims=True))]


def _layer_norm(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = z w + b, z = (x - mean x) / sqrt(mean (x - mean x)² + ε) over the last dimension."""
    x, weight = _read(node, 0, values), _read(node, 1, values)
    if _axis(node) not in (-1, x.ndim - 1):
        raise UnknownOpError(f"{node.name}, which normalises more than the last dimension")
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    z, of_z = centred * scale, g * weight
    along = (of_z * z).mean(axis=-1, keepdims=True)
    return [scale * (of_z - of_z.mean(axis=-1, keepdims=True) - z * along)]


def _erf(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = erf x."""
    return [g * _ROOT * np.exp(-np.square(_read(node, 0, values)))]


def _tanh(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = tanh x."""
    return [g * (1 - np.square(np.tanh(_read(node, 0, values))))]


def _relu(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = max(x, 0)."""
    return [g * (_read(node, 0, values) > 0)]


def _same(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x."""
    return [g]


def _stop(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y is looked up in a constant."""
    return []


def _axis(node: ir.Node) -> int:
    return node.attributes["axis"].as_int() if "axis" in node.attributes else -1


_Back = Callable[["ir.Node", Values, Any], Gradients]
#: The way back by op, and the inputs whose values it is computed from.
_OPS: dict[str, tuple[_Back, tuple[int, ...]]] = {
    "Add": (_add, (0, 1)),
    "Sub": (_sub, (0, 1)),
    "Mul": (_mul, (0, 1)),
    "Div": (_div, (0, 1)),
    "MatMul": (_matmul, (0, 1)),
    "Reshape": (_reshaped, (0,)),
    "Squeeze": (_reshaped, (0,)),
    "Unsqueeze": (_reshaped, (0,)),
    "Flatten": (_reshaped, (0,)),
    "Transpose": (_transpose, ()),
    "Softmax": (_softmax, (0,)),
    "LayerNormalization": (_layer_norm, (0, 1)),
    "Erf": (_erf, (0,)),
    "Tanh": (_tanh, (0,)),
    "Relu": (_relu, (0,)),
    "Identity": (_same, ()),
    "Dropout": (_same, ()),
    "Gather": (_stop, ()),
}
