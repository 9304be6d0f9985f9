"""The backward pass through the ops of a recognised decoder, in NumPy.

Each function takes a node, the values of the graph by name (``[T, width]``, T tokens of one text
that nothing precedes) and what the loss changes by with each of the node's outputs (None: with
none), and gives what it changes by with each of its inputs (None: with none, or not requested).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tamiz.api.attention import SINKS

if TYPE_CHECKING:
    import onnx_ir as ir

Float = NDArray[np.float32]
Values = Mapping[str, Float]
Gradients = list["Float | None"]

#: Attributes of an attention over all keys, or over a window of the last ones.
_PLAIN = {"num_heads", "kv_heads", "scale", "softcap", "rotary_scale", "window", "sinks"}


class UnknownOpError(Exception):
    """No backward pass is known through an op; names it."""


def back(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """The backward pass through one node.

    Raises:
        UnknownOpError: It is not known.
    """
    known = _OPS.get((node.domain, node.op_type))
    if known is None:
        raise UnknownOpError(f"{node.op_type} {node.name}")
    return known[0](node, values, given)


def product(node: ir.Node) -> bool:
    """Whether a node multiplies with a constant weight."""
    return (node.domain, node.op_type) in _PRODUCTS and _constant(node.inputs[1])


def wanted(node: ir.Node) -> list[str]:
    """Names of the values that the backward pass through a node reads."""
    _, indices = _OPS.get((node.domain, node.op_type), (None, ()))
    given = (i for i in indices if i < len(node.inputs) and node.inputs[i] is not None)
    return [_name(node, i) for i in given]


def _constant(value: ir.Value | None) -> bool:
    """Whether a value is a weight, as it is stored or transposed."""
    if value is None or value.is_initializer():
        return value is not None
    node = value.producer()
    return node is not None and node.op_type == "Transpose" and _constant(node.inputs[0])


def _weight(value: ir.Value | None) -> Float:
    if value is None or not _constant(value):
        raise UnknownOpError(f"a product with {None if value is None else value.name}")
    node = value.producer()
    if node is not None:
        turned: Float = _weight(node.inputs[0]).T
        return turned
    assert value.const_value is not None
    weight: Float = value.const_value.numpy()
    return weight


def _matmul(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """y = x W (+ bias)."""
    weight = _weight(node.inputs[1])
    if (transposed := node.attributes.get("transB")) is not None and transposed.as_int():
        weight = weight.T
    assert given[0] is not None
    return [given[0] @ weight.T]


def _block_matmul(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """y = x Wᵀ (+ bias), W ``[n, k]`` packed in the format of its source."""
    from tamiz_ops import formats

    own = {name: attribute.value for name, attribute in node.attributes.items()}
    packed, gradient = node.inputs[1], given[0]
    if set(own) != {"format", "n", "k"} or packed is None or packed.const_value is None:
        raise UnknownOpError(f"{node.name}, whose weight is not as its source stores it")
    assert gradient is not None
    weight = packed.const_value.numpy()
    format = formats.find_format(own["format"])
    result = np.zeros((len(gradient), own["k"]), np.float32)
    for begin in range(0, own["n"], _ROWS):
        rows = slice(begin, begin + _ROWS)
        result += gradient[:, rows] @ formats.dequantize(format, weight, own["n"], own["k"], rows)
    return [result]


def _mul(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """y = c x, c a constant number."""
    constants = [_constant(value) for value in node.inputs]
    if sum(constants) != 1:
        raise UnknownOpError(f"{node.name}, expected a product with a constant number")
    assert given[0] is not None
    factor = _number(node, constants.index(True))
    return [None if constant else given[0] * factor for constant in constants]


def _div(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """y = x / c, c a constant number."""
    if _constant(node.inputs[0]) or not _constant(node.inputs[1]):
        raise UnknownOpError(f"{node.name}, expected a division by a constant number")
    assert given[0] is not None
    return [given[0] / _number(node, 1), None]


def _number(node: ir.Node, index: int) -> Float:
    """The constant number that is an input."""
    number = _weight(node.inputs[index])
    if number.size != 1:
        raise UnknownOpError(f"{node.name}, expected a constant number")
    return number.reshape(())


def _tanh(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """y = tanh x."""
    assert given[0] is not None
    return [given[0] * (1 - np.square(np.tanh(values[_name(node, 0)])))]


def _add(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """y = a + b, the same shape or one a constant."""
    return [given[0] if not _constant(value) else None for value in node.inputs]


def _last_positions(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """y = x: none are left out."""
    assert given[0] is not None
    if values[_name(node, 0)].shape != given[0].shape:
        raise UnknownOpError(f"{node.name}, which leaves something out")
    return [given[0]]


def _rms_norm(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """s = x + residual; y = s / sqrt(mean(s²) + ε) · w over runs of as many elements as w has."""
    weight = _weight(node.inputs[1])
    residual = len(node.inputs) > 2 and node.inputs[2] is not None
    s = values[_name(node, 0)]
    s = s + values[_name(node, 2)] if residual else s
    gradient = np.zeros_like(s) if len(given) < 2 or given[1] is None else given[1]
    if given[0] is not None:
        runs = s.reshape(len(s), -1, weight.size)
        epsilon = node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5
        scale = 1 / np.sqrt(np.square(runs).mean(axis=-1, keepdims=True) + np.float32(epsilon))
        of_unit = given[0].reshape(runs.shape) * weight
        along = (of_unit * runs).mean(axis=-1, keepdims=True)
        gradient = gradient + (scale * (of_unit - runs * along * scale**2)).reshape(s.shape)
    return [gradient, None, gradient if residual else None]


def _swiglu(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """y = gate · σ(gate) · up."""
    gate, up, g = values[_name(node, 0)], values[_name(node, 1)], given[0]
    assert g is not None
    activation = node.attributes.get("activation")
    if activation is not None and activation.as_string() != "silu":
        return _geglu(gate, up, g)
    with np.errstate(over="ignore"):
        sigmoid = (1 / (1 + np.exp(-gate))).astype(np.float32)
    return [g * up * sigmoid * (1 + gate * (1 - sigmoid)), g * gate * sigmoid]


def _geglu(gate: Float, up: Float, g: Float) -> Gradients:
    """y = gate · σ(u) · up, u = sqrt(8/π) (gate + 0.044715 gate³)."""
    root = np.float32((8 / np.pi) ** 0.5)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-root * (gate + np.float32(0.044715) * gate**3)))
    slope = root * (1 + np.float32(3 * 0.044715) * gate**2)
    return [g * up * sigmoid * (1 + gate * slope * (1 - sigmoid)), g * gate * sigmoid]


def _attention(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    """y = softmax(scale · q kᵀ) v over the keys so far, q and k turned by their positions.

    With a soft cap c, c · tanh(scores / c) are the scores.
    With a window W a query sees the last W keys and the first ones, as many as there are sinks.
    """
    own = {name: attribute.value for name, attribute in node.attributes.items()}
    if given[0] is None or set(own) - _PLAIN:
        raise UnknownOpError(f"{node.name} with {', '.join(sorted(set(own) - _PLAIN))}")
    heads, kv_heads = own["num_heads"], own["kv_heads"]
    q, k, v = (values[_name(node, i)] for i in range(3))
    tokens, dim = len(q), q.shape[1] // heads
    scale, cap = np.float32(own.get("scale") or dim**-0.5), np.float32(own.get("softcap", 0.0))
    turn = _Turn(node, tokens, own.get("rotary_scale", 1.0))
    queries = turn(q.reshape(tokens, heads, dim))
    keys, of_values = turn(k.reshape(tokens, kv_heads, dim)), v.reshape(tokens, kv_heads, dim)
    g = given[0].reshape(tokens, heads, dim)
    g_q, g_k, g_v = np.zeros_like(queries), np.zeros_like(keys), np.zeros_like(of_values)
    hidden = np.triu(np.ones((tokens, tokens), bool), 1)
    if window := own.get("window", 0):
        far = np.tril(np.ones((tokens, tokens), bool), -window)
        far[:, : own.get("sinks", SINKS)] = False
        hidden |= far
    for head in range(heads):
        shared = head * kv_heads // heads
        score = scale * (queries[:, head] @ keys[:, shared].T)
        slope = scale
        if cap:
            tanh = np.tanh(score / cap)
            score, slope = cap * tanh, scale * (1 - np.square(tanh))
        score[hidden] = -np.inf
        p = np.exp(score - score.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        g_v[:, shared] += p.T @ g[:, head]
        of_p = g[:, head] @ of_values[:, shared].T
        of_score = slope * p * (of_p - (of_p * p).sum(axis=1, keepdims=True))
        g_q[:, head] = of_score @ keys[:, shared]
        g_k[:, shared] += of_score.T @ queries[:, head]
    return [turn.back(g_q).reshape(q.shape), turn.back(g_k).reshape(k.shape), g_v.reshape(v.shape)]


class _Turn:
    """The rotary embedding of an attention, and its backward pass (the opposite turn)."""

    def __init__(self, node: ir.Node, tokens: int, factor: float) -> None:
        frequency = node.inputs[7] if len(node.inputs) > 7 else None
        self.half = 0 if frequency is None else _weight(frequency).size
        if frequency is not None:
            angle = np.arange(tokens, dtype=np.float32)[:, None, None] * _weight(frequency)
            self.cosine, self.sine = np.cos(angle) * factor, np.sin(angle) * factor

    def __call__(self, x: Float, way: float = 1.0) -> Float:
        if not self.half:
            return x
        a, b, rest = np.split(x, [self.half, 2 * self.half], axis=-1)
        sine = way * self.sine
        turned = [a * self.cosine - b * sine, b * self.cosine + a * sine, rest]
        return np.concatenate(turned, axis=-1).astype(np.float32)

    def back(self, gradient: Float) -> Float:
        return self(gradient, -1.0)


def _stop(node: ir.Node, values: Values, given: Gradients) -> Gradients:
    return []


def _name(node: ir.Node, index: int) -> str:
    value = node.inputs[index]
    assert value is not None
    assert value.name is not None
    return value.name


_Back = Callable[["ir.Node", Values, Gradients], Gradients]
_PRODUCTS = {("", "MatMul"), ("", "Gemm"), ("tamiz", "BlockMatMul")}
#: Rows of a packed weight that are float32 at a time.
_ROWS = 4096
#: The backward pass by op, and the inputs whose values it reads.
_OPS: dict[tuple[str, str], tuple[_Back, tuple[int, ...]]] = {
    ("", "MatMul"): (_matmul, ()),
    ("", "Gemm"): (_matmul, ()),
    ("tamiz", "BlockMatMul"): (_block_matmul, ()),
    ("", "Add"): (_add, ()),
    ("", "Mul"): (_mul, ()),
    ("", "Div"): (_div, ()),
    ("", "Tanh"): (_tanh, (0,)),
    ("", "Gather"): (_stop, ()),
    ("tamiz", "BlockGather"): (_stop, ()),
    ("tamiz", "RMSNorm"): (_rms_norm, (0, 2)),
    ("tamiz", "SwiGLU"): (_swiglu, (0, 1)),
    ("tamiz", "Attention"): (_attention, (0, 1, 2)),
    ("tamiz", "LastPositions"): (_last_positions, (0,)),
}
