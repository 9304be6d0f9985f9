"""The steps that a random graph is made of: each adds a few nodes that other tools write."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from kit.random_graphs import (
    FLOATS,
    LENGTHS,
    LOCAL,
    MICROSOFT,
    ODD_SIZE,
    SIZES,
    Graphs,
    Shape,
    Value,
)

_WHOLE = (
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
)
#: Times that a loop runs its body.
_TURNS = 2


def _weight_for(g: Graphs, width: int) -> tuple[str, bool, int]:
    """A weight that multiplies inputs of a width.

    Returns:
        Its name, whether it is stored as ``[N, K]``, and N.
    """
    shared = g.weights(width)
    if not shared or g.one_in(4):
        n, flipped = g.pick(SIZES), g.flip()
        return (g.weight(n, width) if flipped else g.weight(width, n)), flipped, n
    name = g.pick(shared)
    rows, columns = g.constants[name].shape
    flipped = g.flip() if rows == columns else columns == width
    return name, flipped, rows if flipped else columns


def _linear(g: Graphs) -> None:
    """A product with a weight in either orientation, with or without a bias."""
    wide = [v for v in g.values if v.kind == FLOATS[0] and _wide(v)]
    x = wide[-1] if g.flip() else g.pick(wide)
    weight, flipped, n = _weight_for(g, x.shape[-1])
    if g.one_in(5):
        weight = g.op("Identity", weight)
    added = g.pick((None, g.vector(n), g.vector(1), g.vector(n)[None]))
    if len(x.shape) == 2 and g.flip():
        if g.one_in(4):
            weight, flipped = g.op("Transpose", weight, perm=[1, 0]), not flipped
        inputs = [x.name, weight, *([] if added is None else [g.constant(added)])]
        other: dict[str, Any] = {"alpha": 0.5} if g.one_in(6) else {}
        y = g.op("Gemm", *inputs, transB=int(flipped), **other)
    else:
        if flipped:
            order: dict[str, Any] = {"perm": [1, 0]} if g.flip() else {}
            weight = g.op("Transpose", weight, **order)
        y = g.op("MatMul", x.name, weight)
        if added is not None and len(x.shape) >= added.ndim:
            y = g.op("Add", *_either(g, y, g.constant(added)))
    g.give(y, x.kind, (*x.shape[:-1], n))


def _wide(x: Value) -> bool:
    """Whether the last dimension is one that weights have."""
    return bool(x.shape) and x.shape[-1] in (*SIZES, ODD_SIZE)


def _either(g: Graphs, a: str, b: str) -> tuple[str, str]:
    return (a, b) if g.flip() else (b, a)


def _unary(g: Graphs) -> None:
    x = g.floats()
    op = g.pick(("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Identity", "Erf", "Dropout", "Cast"))
    more: dict[str, Any] = {"to": x.kind} if op == "Cast" else {}
    g.give(g.op(op, x.name, **more), x.kind, x.shape)


def _binary(g: Graphs) -> None:
    """Of two values of one shape, or of a value and what broadcasts."""
    x = g.floats()
    same = [v for v in g.values if v.kind == x.kind and v.shape == x.shape]
    last = x.shape[-1] if x.shape and isinstance(x.shape[-1], int) else 1
    other, shape = g.pick(same).name, x.shape
    how = g.pick(("same", "vector", "scalar", "one", "high"))
    if how != "same":
        array: np.ndarray = {
            "vector": g.vector(last),
            "scalar": np.array(0.5, np.float32),
            "one": np.array([2], np.float32),
            "high": np.full((1,) * (len(x.shape) + 1), 0.25, np.float32),
        }[how]
        other = g.constant(array)
        shape = (1, *x.shape) if how == "high" else x.shape or array.shape
    y = g.op(g.pick(("Add", "Mul", "Sub")), *_either(g, x.name, other))
    g.give(y, x.kind, shape)


def _broadcast(g: Graphs) -> None:
    """Of values whose shapes differ."""
    x, y = g.floats(), g.floats()
    if len(x.shape) == len(y.shape) and (shape := _common(x.shape, y.shape)) is not None:
        g.give(g.op(g.pick(("Add", "Mul")), x.name, y.name), x.kind, shape)


def _common(long: Shape, short: Shape) -> Shape | None:
    """What two shapes broadcast to; None where they do not."""
    shape = list(long)
    for axis in range(-len(short), 0):
        a, b = (LENGTHS.get(s[axis], s[axis]) for s in (long, short))
        if a != b and 1 not in (a, b):
            return None
        if a == 1:
            shape[axis] = short[axis]
    return tuple(shape)


def _norm(g: Graphs) -> None:
    """RMSNorm in primitive ops, with a weight and constants that may broadcast."""
    x = g.floats()
    if not x.shape or not isinstance(x.shape[-1], int):
        return
    size = x.shape[-1]
    weight = g.pick((g.vector(size), g.vector(1), g.vector(1), g.vector(size)[None]))
    rank = g.pick((0, 0, 0, 1, len(x.shape) + 1))
    epsilon = g.constant(np.full((1,) * rank, 1e-3, np.float32))
    square = g.op("Mul", x.name, x.name)
    if g.flip():
        square = g.op("Pow", x.name, g.constant(np.float32(2)))
    if g.opset < 18:
        mean = g.op("ReduceMean", square, axes=[-1])
    else:
        mean = g.op("ReduceMean", square, g.constant(np.array([-1])))
    root = g.op("Sqrt", g.op("Add", mean, epsilon))
    if g.flip():
        normal = g.op("Div", x.name, root)
    else:
        inverse = g.op("Div", g.constant(np.float32(1)), root) if g.flip() else None
        normal = g.op("Mul", x.name, inverse or g.op("Reciprocal", root))
    y = g.op("Mul", normal, g.constant(weight))
    rank = max(len(x.shape), rank, weight.ndim)
    g.give(y, x.kind, (*(1,) * (rank - len(x.shape)), *x.shape))


def _norm_op(g: Graphs) -> None:
    """RMSNorm as one op, of ONNX or of ONNX Runtime, also with what is added before."""
    x = g.floats()
    if not x.shape or not isinstance(x.shape[-1], int):
        return
    inputs = [x.name, g.constant(g.vector(x.shape[-1]))]
    same = [v for v in g.values if v.kind == x.kind and v.shape == x.shape]
    if len(x.shape) == 3 and g.flip():
        inputs.insert(1, g.pick(same).name)
        y = g.op("SkipSimplifiedLayerNormalization", *inputs, domain=MICROSOFT, epsilon=1e-3)
    elif g.opset >= 23 and g.flip():
        y = g.op("RMSNormalization", *inputs, axis=-1)
    else:
        y = g.op("SimplifiedLayerNormalization", *inputs, axis=-1, epsilon=1e-3)
    g.give(y, x.kind, x.shape)


def _gated(g: Graphs) -> None:
    """silu(gate) · up, of shapes that may differ."""
    x, up = g.floats(), g.floats()
    if x.shape and isinstance(x.shape[-1], int) and g.one_in(3):
        up = Value(g.constant(g.vector(x.shape[-1])), x.kind, x.shape[-1:])
    if len(x.shape) < len(up.shape):
        x, up = up, x
    shape = _common(x.shape, up.shape)
    if shape is None:
        return
    gate = g.op("Mul", x.name, g.op("Sigmoid", x.name))
    if g.opset >= 24 and g.flip():
        slope: dict[str, Any] = {"alpha": 1.5} if g.flip() else {}
        gate = g.op("Swish", x.name, **slope)
    g.give(g.op("Mul", *_either(g, gate, up.name)), x.kind, shape)


def _microsoft(g: Graphs) -> None:
    x = g.floats()
    if not _wide(x):
        return
    k = x.shape[-1]
    op = g.pick(("QuickGelu", "FastGelu", "BiasGelu", "FusedMatMul", "Gelu", "ExpandDims"))
    if op == "ExpandDims":  # no rule says its shape, so what follows has none
        if len(x.shape) < 4:
            y = g.op(op, x.name, g.constant(np.array(0, np.int32)), domain=MICROSOFT)
            g.give(y, x.kind, (1, *x.shape))
        return
    if op == "FusedMatMul":
        weight, flipped, n = _weight_for(g, k)
        y = g.op(op, x.name, weight, domain=MICROSOFT, transB=int(flipped), alpha=0.5)
        g.give(y, x.kind, (*x.shape[:-1], n))
        return
    more = [g.constant(g.vector(k))] if op == "BiasGelu" else []
    g.give(g.op(op, x.name, *more, domain=MICROSOFT), x.kind, x.shape)


def _layout(g: Graphs) -> None:
    """Changes of the shape that keep the last dimension, or swap the last two."""
    x = g.floats()
    how = g.pick(("unsqueeze", "swap", "through shape", "slice", "concat"))
    if how == "unsqueeze" and len(x.shape) < 4:
        axes: dict[str, Any] = {"axes": [0]} if g.opset < 13 else {}
        more = [] if g.opset < 13 else [g.constant(np.array([0]))]
        g.give(g.op("Unsqueeze", x.name, *more, **axes), x.kind, (1, *x.shape))
    elif how == "swap" and len(x.shape) >= 2:
        order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
        y = g.op("Transpose", x.name, perm=order)
        g.give(y, x.kind, (*x.shape[:-2], x.shape[-1], x.shape[-2]))
    elif how == "through shape":
        y = g.op("Reshape", x.name, g.op("Shape", x.name))
        g.give(y, x.kind, x.shape)
    elif how == "slice" and x.shape and x.shape[-1] == 64:
        bounds = [g.constant(np.array([number])) for number in (0, 32, -1)]
        g.give(g.op("Slice", x.name, *bounds), x.kind, (*x.shape[:-1], 32))
    elif how == "concat" and x.shape and x.shape[-1] == 32:
        g.give(g.op("Concat", x.name, x.name, axis=-1), x.kind, (*x.shape[:-1], 64))


def _constants(g: Graphs) -> None:
    """Computed from constants alone."""
    x = g.floats()
    size = x.shape[-1] if x.shape and isinstance(x.shape[-1], int) else 1
    half = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
    filled = g.op("ConstantOfShape", g.constant(np.array([size])), value=half)
    summed = g.op("Add", filled, g.constant(g.vector(size)))
    g.give(g.op("Add", x.name, g.op("Mul", summed, summed)), x.kind, x.shape or (size,))


def _inner(g: Graphs, x: str, shape: Shape, y: str) -> list[onnx.NodeProto]:
    """Nodes for a graph inside of a node: an activation of x, or a product with a shared weight."""
    square = (
        [n for n in g.weights(shape[-1]) if len(set(g.constants[n].shape)) == 1] if shape else []
    )
    if square and g.flip():
        return [helper.make_node("MatMul", [x, g.pick(square)], [y], name=y)]
    return [helper.make_node(g.pick(("Relu", "Neg", "Tanh", "Identity")), [x], [y], name=y)]


def _branch(g: Graphs) -> None:
    """An If whose branches read values around it."""
    x = g.floats()
    condition, branches = g.constant(np.array(g.flip())), []
    for _ in range(2):
        made = g.name("b")
        branches.append(g.body(_inner(g, x.name, x.shape, made), made, x.kind))
    y = g.op("If", condition, then_branch=branches[0], else_branch=branches[1])
    g.give(y, x.kind, x.shape)


def _loop(g: Graphs) -> None:
    """A Loop that carries a value, reads one around it, and stacks what it makes in each turn."""
    x = g.floats()
    around = g.pick([v for v in g.values if v.kind == x.kind and v.shape == x.shape]).name
    names = [g.name("l") for _ in range(6)]
    turn, go_in, state, go_out, inner, made = names
    nodes = [
        helper.make_node("Identity", [go_in], [go_out], name=go_out),
        *_inner(g, state, x.shape, inner),
        helper.make_node(g.pick(("Add", "Mul", "Sub")), [inner, around], [made], name=made),
    ]
    stacked = g.name("l")
    nodes.append(helper.make_node("Neg", [made], [stacked], name=stacked))
    body = helper.make_graph(
        nodes,
        g.name("g"),
        [
            helper.make_tensor_value_info(turn, TensorProto.INT64, []),
            helper.make_tensor_value_info(go_in, TensorProto.BOOL, []),
            helper.make_tensor_value_info(state, x.kind, None),
        ],
        [
            helper.make_tensor_value_info(go_out, TensorProto.BOOL, []),
            helper.make_tensor_value_info(made, x.kind, None),
            helper.make_tensor_value_info(stacked, x.kind, None),
        ],
    )
    inputs = [g.constant(np.array(_TURNS)), g.constant(np.array(True)), x.name]
    y, z = g.name(), g.name()
    g.nodes.append(helper.make_node("Loop", inputs, [y, z], name=y, body=body))
    g.give(y, x.kind, x.shape)
    g.give(z, x.kind, (_TURNS, *x.shape))


def _sequence(g: Graphs) -> None:
    x = g.floats()
    if not x.shape:
        return
    zero = g.constant(np.array(0))
    if g.flip():
        s = g.op("SequenceConstruct", x.name, x.name)
        g.give(g.op("SequenceAt", s, zero), x.kind, x.shape)
    else:
        s = g.op("SplitToSequence", x.name, axis=-1)
        g.give(g.op("ConcatFromSequence", s, axis=-1), x.kind, x.shape)


def _whole(g: Graphs) -> None:
    """Through a whole-number type and back."""
    x, kind = g.floats(), g.pick(_WHOLE)
    small = g.op("Clip", x.name, g.constant(np.float32(0)), g.constant(np.float32(9)))
    whole = g.op("Cast", small, to=kind)
    if g.flip():
        g.give(whole, kind, x.shape)
    g.give(g.op("Cast", whole, to=x.kind), x.kind, x.shape)


def _jump(g: Graphs) -> None:
    """What jumps where its input crosses a number: signs, rounded numbers, comparisons, places."""
    x = g.floats()
    op = g.pick(("Sign", "Round", "Floor", "Ceil", "Greater", "Where", "ArgMax"))
    if op == "ArgMax":
        if x.shape:
            y = g.op(op, x.name, axis=-1, keepdims=1)
            g.give(g.op("Cast", y, to=x.kind), x.kind, (*x.shape[:-1], 1))
    elif op in ("Greater", "Where"):
        above = g.op("Greater", x.name, g.constant(np.float32(0.25)))
        if op == "Greater":
            g.give(g.op("Cast", above, to=x.kind), x.kind, x.shape)
        else:
            g.give(g.op("Where", above, x.name, g.op("Neg", x.name)), x.kind, x.shape)
    else:
        g.give(g.op(op, x.name), x.kind, x.shape)


def _half(g: Graphs) -> None:
    """Through float16, with a product or a norm there."""
    x = g.floats()
    half = g.op("Cast", g.op("Tanh", x.name), to=FLOATS[1])
    shape = x.shape
    if _wide(x) and g.flip():
        weight = g.constants[g.weight(x.shape[-1], 32)].astype(np.float16)
        half, shape = g.op("MatMul", half, g.constant(weight)), (*x.shape[:-1], 32)
    elif g.flip():
        half = g.op("Mul", half, g.op("Sigmoid", half))
    g.give(g.op("Cast", half, to=FLOATS[0]), FLOATS[0], shape)


#: Two draws of so many zeros and ones are not equal by chance.
_MANY = 64


def _least(shape: Shape) -> int:
    """Numbers of a value whose dimensions of unknown size are 1."""
    return math.prod(size for size in shape if isinstance(size, int))


def _drawn(g: Graphs) -> None:
    """Whether all numbers of two draws are equal: 0, but for draws that were made one."""
    x = g.floats()
    op = g.pick(("RandomNormalLike", "RandomUniformLike", "Bernoulli", "Dropout"))
    if op == "Dropout" and g.opset >= 12:
        more = [g.constant(np.float32(0.5)), g.constant(np.array(True))]
        pair = [g.op(op, x.name, *more, outputs=2) for _ in range(2)]
    elif op == "Bernoulli" and g.opset >= 15 and _least(x.shape) >= _MANY:
        half = g.op("Sigmoid", g.op("Sub", x.name, x.name))
        pair = [g.op(op, half) for _ in range(2)]
    else:
        if g.opset >= 22:
            return  # ONNX Runtime has no kernels
        op = "RandomNormalLike" if op in ("Dropout", "Bernoulli") else op
        pair = [g.op(op, x.name, dtype=FLOATS[0]) for _ in range(2)]
    whole = [g.op("Cast", drawn, to=FLOATS[0]) for drawn in pair]
    equal = g.op("Cast", g.op("Equal", *whole), to=FLOATS[0])
    g.give(g.op("ReduceMin", equal, keepdims=0), FLOATS[0], ())


def _function(g: Graphs) -> None:
    """A function of the model: y = relu(a) · b."""
    x = g.floats()
    if not g.functions:
        nodes = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Mul", ["r", "b"], ["y"])]
        imports = [helper.make_opsetid("", g.opset)]
        g.functions.append(helper.make_function(LOCAL, "Gate", ["a", "b"], ["y"], nodes, imports))
    g.give(g.op("Gate", x.name, x.name, domain=LOCAL), x.kind, x.shape)


Step = Callable[[Graphs], None]
STEPS: tuple[Step, ...] = (
    *(_linear,) * 12,
    *(_unary, _binary, _broadcast, _norm, _norm_op, _gated, _microsoft, _layout, _constants),
    *(_branch, _loop, _sequence, _whole, _jump, _half, _drawn, _function),
)
