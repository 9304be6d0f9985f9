"""The backward pass through the ops of an encoder, in NumPy.

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
    """The backward pass through one node.

    Raises:
        UnknownOpError: It is not known.
    """
    if product(node) or node.domain:
        return backward.back(node, values, given)
    if node.op_type == "Split":
        return _split(node, values, given)
    known = _OPS.get(node.op_type)
    if known is None or given[0] is None:
        raise UnknownOpError(f"{node.op_type} {node.name}")
    return known[0](node, values, given[0])


def wanted(node: ir.Node) -> list[str]:
    """Names of the values that the backward pass through a node reads."""
    if product(node) or node.domain:
        return backward.wanted(node)
    _, indices = _OPS.get(node.op_type, (None, (0, 1) if node.op_type == "Split" else ()))
    return [
        name
        for i in indices
        if i < len(node.inputs) and (value := node.inputs[i]) is not None
        # Constants are read from the model.
        if value.const_value is None and (name := value.name) is not None
    ]


def _read(node: ir.Node, index: int, values: Values) -> Any:
    """An input: a constant of the model, or a value of the run."""
    value = node.inputs[index]
    assert value is not None
    if value.const_value is not None:
        return value.const_value.numpy()
    assert value.name is not None
    return values[value.name]


def _given(node: ir.Node, index: int) -> bool:
    """Whether an input that may be left out is there."""
    return index < len(node.inputs) and node.inputs[index] is not None


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


def _pow(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x^c, c a constant."""
    exponent = node.inputs[1]
    if exponent is None or exponent.const_value is None:
        raise UnknownOpError(f"{node.name}, whose exponent is computed")
    x, power = _read(node, 0, values), exponent.const_value.numpy().astype(np.float32)
    return [_like(g * power * x ** (power - 1), x.shape)]


def _where(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a where the condition holds, else b."""
    holds, a, b = (_read(node, i, values) for i in range(3))
    return [None, _like(np.where(holds, g, 0), a.shape), _like(np.where(holds, 0, g), b.shape)]


def _matmul(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a b, over the last two dimensions."""
    a, b = (_read(node, i, values) for i in range(2))
    of_a, of_b = g @ np.swapaxes(b, -1, -2), np.swapaxes(a, -1, -2) @ g
    return [_like(of_a, a.shape), _like(of_b, b.shape)]


def _reshaped(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y has the elements of x in their order."""
    return [g.reshape(_read(node, 0, values).shape)]


def _expand(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x, repeated along dimensions of 1."""
    return [_like(g, _read(node, 0, values).shape)]


def _tile(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x, repeated as a whole along each dimension."""
    shape = _read(node, 0, values).shape
    parts: list[int] = []
    for whole, size in zip(g.shape, shape, strict=True):
        parts += [whole // size, size]
    return [g.reshape(parts).sum(axis=tuple(range(0, len(parts), 2)))]


def _slice(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = every so many elements of x between two places, along some dimensions."""
    x = _read(node, 0, values)
    starts, ends = (_read(node, i, values).tolist() for i in (1, 2))
    axes = _read(node, 3, values).tolist() if _given(node, 3) else range(len(starts))
    steps = _read(node, 4, values).tolist() if _given(node, 4) else [1] * len(starts)
    place = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0:
            raise UnknownOpError(f"{node.name}, which reads backwards")
        place[axis] = slice(start, end, step)
    found = np.zeros(x.shape, g.dtype)
    found[tuple(place)] = g
    return [found]


def _split(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """The outputs are parts of x, one after the other."""
    x, axis = _read(node, 0, values), _axis(node, 0)
    sizes = [x.shape[axis] // len(given)] * len(given)
    if _given(node, 1):
        sizes = _read(node, 1, values).tolist()
    parts = []
    for size, gradient in zip(sizes, given, strict=True):
        shape = list(x.shape)
        shape[axis] = size
        parts.append(np.zeros(shape, np.float32) if gradient is None else gradient)
    return [np.concatenate(parts, axis=axis)]


def _concat(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = the inputs, one after the other."""
    axis = node.attributes["axis"].as_int()
    sizes = [_read(node, i, values).shape[axis] for i in range(len(node.inputs))]
    return list(np.split(g, np.cumsum(sizes)[:-1], axis=axis))


def _gather_elements(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x at a place of its own along one dimension for every element."""
    x, index, axis = _read(node, 0, values), _read(node, 1, values), _axis(node, 0)
    places: list[Any] = list(np.indices(index.shape))
    places[axis] = index
    found = np.zeros(x.shape, g.dtype)
    np.add.at(found, tuple(places), g)
    return [found]


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


def _neg(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = -x."""
    return [-g]


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


def _axis(node: ir.Node, default: int = -1) -> int:
    return node.attributes["axis"].as_int() if "axis" in node.attributes else default


_Back = Callable[["ir.Node", Values, Any], Gradients]
#: The backward pass by op, and the inputs whose values it reads.
_OPS: dict[str, tuple[_Back, tuple[int, ...]]] = {
    "Add": (_add, (0, 1)),
    "Sub": (_sub, (0, 1)),
    "Mul": (_mul, (0, 1)),
    "Div": (_div, (0, 1)),
    "Pow": (_pow, (0,)),
    "Neg": (_neg, ()),
    "Where": (_where, (0, 1, 2)),
    "MatMul": (_matmul, (0, 1)),
    "Expand": (_expand, (0,)),
    "Tile": (_tile, (0,)),
    "Slice": (_slice, (0, 1, 2, 3, 4)),
    "Concat": (_concat, tuple(range(16))),
    "GatherElements": (_gather_elements, (0, 1)),
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
