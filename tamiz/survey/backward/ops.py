"""The backward pass through general ops of ONNX; see `products`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tamiz.interface.states import PAST
from tamiz.survey.backward.node import (
    Float,
    Gradients,
    UnknownOpError,
    Values,
    axis_of,
    constant,
    has_input,
    like,
    read,
)

if TYPE_CHECKING:
    import onnx_ir as ir

_TWO_OVER_ROOT_PI = np.float32(2 / np.pi**0.5)


def add(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a + b."""
    return [like(g, _shape(node, i, values, g)) for i in range(2)]


def sub(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a - b."""
    return [like(part, _shape(node, i, values, g)) for i, part in enumerate((g, -g))]


def mul(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a b, element by element."""
    if (place := number(node)) is not None:
        return [None if i == place else g * _factor(node, place) for i in range(2)]
    a, b = (read(node, i, values) for i in range(2))
    return [like(g * b, a.shape), like(g * a, b.shape)]


def div(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a / b, element by element."""
    if number(node) == 1:
        return [g / _factor(node, 1), None]
    a, b = (read(node, i, values) for i in range(2))
    of_b: Float = -g * a / (b * b)
    return [like(g / b, a.shape), like(of_b, b.shape)]


def number(node: ir.Node) -> int | None:
    """Which operand of an elementwise op is one constant number; None if neither is.

    The other operand then has the shape of the output, and need not be read for it.
    """
    for index, value in enumerate(node.inputs):
        held = None if value is None else value.const_value
        if held is not None and held.size == 1 and len(held.shape) <= 1:
            return index
    return None


def _factor(node: ir.Node, index: int) -> Float:
    factor: Float = constant(node.inputs[index]).reshape(())
    return factor


def _shape(node: ir.Node, index: int, values: Values, g: Float) -> tuple[int, ...]:
    """The shape of an operand of an elementwise op."""
    if number(node) == 1 - index:
        return g.shape
    shape: tuple[int, ...] = read(node, index, values).shape
    return shape


def power(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x^c, c a constant."""
    exponent = node.inputs[1]
    if exponent is None or exponent.const_value is None:
        raise UnknownOpError(f"{node.name}, whose exponent is computed")
    x, power = read(node, 0, values), exponent.const_value.numpy().astype(np.float32)
    return [like(g * power * x ** (power - 1), x.shape)]


def choose(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = a where the condition holds, else b."""
    holds, a, b = (read(node, i, values) for i in range(3))
    return [None, like(np.where(holds, g, 0), a.shape), like(np.where(holds, 0, g), b.shape)]


def reshaped(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y has the elements of x in their order."""
    return [g.reshape(read(node, 0, values).shape)]


def expand(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x, repeated along dimensions of 1."""
    return [like(g, read(node, 0, values).shape)]


def tile(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x, repeated as a whole along each dimension."""
    shape = read(node, 0, values).shape
    parts: list[int] = []
    for whole, size in zip(g.shape, shape, strict=True):
        parts += [whole // size, size]
    return [g.reshape(parts).sum(axis=tuple(range(0, len(parts), 2)))]


def cut(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = every so many elements of x between two places, along some dimensions."""
    x = read(node, 0, values)
    starts, ends = (read(node, i, values).tolist() for i in (1, 2))
    axes = read(node, 3, values).tolist() if has_input(node, 3) else range(len(starts))
    steps = read(node, 4, values).tolist() if has_input(node, 4) else [1] * len(starts)
    place = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0:
            raise UnknownOpError(f"{node.name}, which reads backwards")
        place[axis] = slice(start, end, step)
    gradient = np.zeros(x.shape, g.dtype)
    gradient[tuple(place)] = g
    return [gradient]


def split(node: ir.Node, values: Values, *given: Float | None) -> Gradients:
    """The outputs are parts of x, one after the other."""
    x, axis = read(node, 0, values), axis_of(node, 0)
    sizes = [x.shape[axis] // len(given)] * len(given)
    if has_input(node, 1):
        sizes = read(node, 1, values).tolist()
    parts = []
    for size, gradient in zip(sizes, given, strict=True):
        shape = list(x.shape)
        shape[axis] = size
        parts.append(np.zeros(shape, np.float32) if gradient is None else gradient)
    return [np.concatenate(parts, axis=axis)]


def concat(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = the inputs, one after the other; a state that begins y is as long as the others leave."""
    axis, first = node.attributes["axis"].as_int(), node.inputs[0]
    state = first is not None and (first.name or "").startswith(PAST)
    sizes = [read(node, i, values).shape[axis] for i in range(state, len(node.inputs))]
    sizes = [g.shape[axis] - sum(sizes), *sizes] if state else sizes
    return list(np.split(g, np.cumsum(sizes)[:-1], axis=axis))


def convolution(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y_t = Σ_j w_j x_{t+j}, each channel alone, ``[1, channels, tokens]``."""
    weight, groups = read(node, 1, values), node.attributes.get_int("group", 1)
    if weight.ndim != 3 or groups != len(weight) or set(node.attributes) - {"group"}:
        raise UnknownOpError(f"{node.name}, which mixes channels, or pads")
    taps = weight.shape[2]
    gradient = np.zeros((*g.shape[:2], g.shape[2] + taps - 1), np.float32)
    for tap in range(taps):
        gradient[..., tap : tap + g.shape[2]] += g * weight[:, 0, tap, None]
    return [gradient]


def gather_elements(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x at a place of its own along one dimension for every element."""
    x, index, axis = read(node, 0, values), read(node, 1, values), axis_of(node, 0)
    places: list[Any] = list(np.indices(index.shape))
    places[axis] = index
    gradient = np.zeros(x.shape, g.dtype)
    np.add.at(gradient, tuple(places), g)
    return [gradient]


def scatter_elements(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x, but for updates at places of their own along one dimension."""
    if node.attributes.get_string("reduction", "none") != "none":
        raise UnknownOpError(f"{node.name}, which reduces")
    index, axis = read(node, 1, values), axis_of(node, 0)
    of_x = g.copy()
    np.put_along_axis(of_x, index, 0, axis)
    return [of_x, None, np.take_along_axis(g, index, axis)]


def best(node: ir.Node, values: Values, g: Float, _: Float | None = None) -> Gradients:
    """y = the largest x along one dimension, in falling order; the choice stays as it is."""
    if any(not node.attributes.get_int(how, 1) for how in ("largest", "sorted")):
        raise UnknownOpError(f"{node.name}, which takes the smallest, or does not sort")
    x, axis = read(node, 0, values), axis_of(node)
    order = np.argsort(-x, axis, kind="stable")
    gradient = np.zeros(x.shape, g.dtype)
    np.put_along_axis(gradient, order.take(range(g.shape[axis]), axis), g, axis)
    return [gradient]


def transpose(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x with its dimensions in another order."""
    order = node.attributes["perm"].as_ints() if "perm" in node.attributes else range(g.ndim)[::-1]
    return [g.transpose(np.argsort(order))]


def softmax(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = exp x / Σ exp x over one dimension."""
    axis, x = axis_of(node), read(node, 0, values)
    p = np.exp(x - x.max(axis=axis, keepdims=True))
    p /= p.sum(axis=axis, keepdims=True)
    return [p * (g - (g * p).sum(axis=axis, keepdims=True))]


def layer_norm(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = z w + b, z = (x - mean x) / sqrt(mean (x - mean x)² + ε) over the last dimension."""
    x, weight = read(node, 0, values), read(node, 1, values)
    if axis_of(node) not in (-1, x.ndim - 1):
        raise UnknownOpError(f"{node.name}, which normalises more than the last dimension")
    epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = 1 / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + np.float32(epsilon))
    z, of_z = centred * scale, g * weight
    along = (of_z * z).mean(axis=-1, keepdims=True)
    return [scale * (of_z - of_z.mean(axis=-1, keepdims=True) - z * along)]


def neg(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = -x."""
    return [-g]


def erf(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = erf x."""
    return [g * _TWO_OVER_ROOT_PI * np.exp(-np.square(read(node, 0, values)))]


def tanh(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = tanh x."""
    return [g * (1 - np.square(np.tanh(read(node, 0, values))))]


def sigmoid(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = 1 / (1 + exp(-x))."""
    y = 1 / (1 + np.exp(-read(node, 0, values)))
    return [g * y * (1 - y)]


def relu(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = max(x, 0)."""
    return [g * (read(node, 0, values) > 0)]


def larger(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = max(a, b), element by element."""
    if len(node.inputs) != 2:
        raise UnknownOpError(f"{node.name} of {len(node.inputs)} operands")
    a, b = (read(node, i, values) for i in range(2))
    return [like(g * (a >= b), a.shape), like(g * (a < b), b.shape)]


def total(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = the sum over axes, which may be kept."""
    if not has_input(node, 1):
        raise UnknownOpError(f"{node.name}, which names no axes")
    x, axes = read(node, 0, values), tuple(constant(node.inputs[1]).tolist())
    kept = g if node.attributes.get_int("keepdims", 1) else np.expand_dims(g, axes)
    return [np.broadcast_to(kept, x.shape)]


def mean(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = the mean over axes, which may be kept."""
    (summed,) = total(node, values, g)
    assert summed is not None
    return [summed * np.float32(g.size / summed.size)]


def root(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = sqrt(x)."""
    return [g / (2 * np.sqrt(read(node, 0, values)))]


def same(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y = x."""
    return [g]


def stop(node: ir.Node, values: Values, g: Float) -> Gradients:
    """y is looked up in a constant."""
    return []
