"""Random ONNX graphs in the forms that other tools write, with inputs on which they run.

Weights are whole numbers of eight bits, times a power of two, so that the formats ``q8_0`` and
``f16`` store them exactly: a built model must give the outputs of plain ONNX Runtime but for the
rounding of the inputs of products. Weights are shared by several nodes, in both orientations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT = "com.microsoft"
SIZES = (32, 64)
#: Lengths of the symbolic dimensions in a run.
LENGTHS = {"n": 3, "m": 1}
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_WHOLE = (
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
)
#: Names of dimensions and lengths.
Shape = tuple[Any, ...]


@dataclass(frozen=True)
class Value:
    """A value of the graph: its name, element type and shape."""

    name: str
    kind: int
    shape: Shape


@dataclass
class Graphs:
    """One graph while it is made.

    Attributes:
        draw: Draws from a strategy of hypothesis.
        opset: Version of ONNX's ops.
    """

    draw: Callable[..., Any]
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    count: int = 0

    def pick(self, choices: Any) -> Any:
        return self.draw(st.sampled_from(list(choices)))

    def flip(self) -> bool:
        return bool(self.draw(st.booleans()))

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def op(self, op: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """A node of one output, whose name it returns."""
        output = self.name()
        self.nodes.append(
            helper.make_node(op, list(inputs), [output], domain=domain, name=output, **attributes)
        )
        return output

    def constant(self, array: Any, prefix: str = "c") -> str:
        """An initializer, or a Constant node."""
        name, array = self.name(prefix), np.asarray(array)
        if self.flip():
            self.constants[name] = array
        else:
            value = numpy_helper.from_array(array, name)
            self.nodes.append(helper.make_node("Constant", [], [name], value=value, name=name))
        return name

    def weight(self, rows: int, columns: int) -> str:
        """An initializer ``[rows, columns]``: one that there is, or a new one."""
        there = [n for n, a in self.constants.items() if a.shape == (rows, columns) and n[0] == "w"]
        if there and self.draw(st.integers(0, 3)):
            return str(self.pick(there))
        name = self.name("w")
        rng = np.random.default_rng(len(self.constants))
        self.constants[name] = (rng.integers(-127, 128, (rows, columns)) / 1024).astype(np.float32)
        for row in self.constants[name].reshape(-1, 32):  # so that the largest is that of q8_0
            row[0] = 127 / 1024
        for column in self.constants[name].T.reshape(-1, 32):
            self.constants[name][0, :] = 127 / 1024
            del column
        return name

    def vector(self, size: int) -> np.ndarray:
        rng = np.random.default_rng(self.count)
        return (rng.integers(-8, 9, size) / 8).astype(np.float32)

    def give(self, name: str, kind: int, shape: Shape) -> None:
        self.values.append(Value(name, kind, shape))

    def floats(self) -> Value:
        """A float value; the last ones are likelier."""
        found = [v for v in self.values if v.kind == TensorProto.FLOAT]
        return found[-1] if self.flip() else self.pick(found)  # type: ignore[no-any-return]


def _linear(g: Graphs) -> None:
    """A product with a weight in either orientation, with or without a bias."""
    x = g.floats()
    if not x.shape or x.shape[-1] not in SIZES:
        return
    k, n = x.shape[-1], g.pick(SIZES)
    flipped = g.flip()
    weight = g.weight(n, k) if flipped else g.weight(k, n)
    if g.draw(st.integers(0, 4)) == 0:
        weight = g.op("Identity", weight)
    bias = g.pick(("none", "vector", "one", "row"))
    added = {"vector": g.vector(n), "one": g.vector(1), "row": g.vector(n)[None]}.get(bias)
    if len(x.shape) == 2 and g.flip():
        inputs = [x.name, weight, *([] if added is None else [g.constant(added)])]
        other: dict[str, Any] = {"alpha": 0.5} if g.draw(st.integers(0, 5)) == 0 else {}
        y = g.op("Gemm", *inputs, transB=int(flipped), **other)
    else:
        if flipped:
            order: dict[str, Any] = {"perm": [1, 0]} if g.flip() else {}
            weight = g.op("Transpose", weight, **order)
        y = g.op("MatMul", x.name, weight)
        if added is not None and len(x.shape) >= added.ndim:
            pair = [y, g.constant(added)]
            y = g.op("Add", *(pair if g.flip() else pair[::-1]))
    g.give(y, x.kind, (*x.shape[:-1], n))


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
    pair = [x.name, other]
    y = g.op(g.pick(("Add", "Mul", "Sub")), *(pair if g.flip() else pair[::-1]))
    g.give(y, x.kind, shape)


def _broadcast(g: Graphs) -> None:
    """Of values whose shapes differ."""
    x, y = g.floats(), g.floats()
    if len(x.shape) != len(y.shape):
        return
    shape = []
    for a, b in zip(x.shape, y.shape, strict=True):
        if a != b and 1 not in (LENGTHS.get(a, a), LENGTHS.get(b, b)):
            return
        shape.append(b if LENGTHS.get(a, a) == 1 else a)
    g.give(g.op(g.pick(("Add", "Mul")), x.name, y.name), x.kind, tuple(shape))


def _norm(g: Graphs) -> None:
    """RMSNorm in primitive ops, with a weight and constants that may broadcast."""
    x = g.floats()
    if not x.shape or not isinstance(x.shape[-1], int):
        return
    weight = g.pick((g.vector(x.shape[-1]), g.vector(1), g.vector(x.shape[-1])[None]))
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
    x = g.floats()
    if not x.shape or not isinstance(x.shape[-1], int):
        return
    inputs = [x.name, g.constant(g.vector(x.shape[-1]))]
    if g.opset >= 23 and g.flip():
        y = g.op("RMSNormalization", *inputs, axis=-1)
    else:
        y = g.op("SimplifiedLayerNormalization", *inputs, axis=-1, epsilon=1e-3)
    g.give(y, x.kind, x.shape)


def _gated(g: Graphs) -> None:
    """silu(gate) · up, of shapes that may differ."""
    x, up = g.floats(), g.floats()
    if len(x.shape) < len(up.shape):
        x, up = up, x
    shape = list(x.shape)
    for axis in range(-len(up.shape), 0):
        a, b = (LENGTHS.get(s[axis], s[axis]) for s in (x.shape, up.shape))
        if a != b and 1 not in (a, b):
            return
        if a == 1:
            shape[axis] = up.shape[axis]
    gate = g.op("Mul", x.name, g.op("Sigmoid", x.name))
    if g.opset >= 24 and g.flip():
        slope: dict[str, Any] = {"alpha": 1.5} if g.flip() else {}
        gate = g.op("Swish", x.name, **slope)
    g.give(g.op("Mul", gate, up.name), x.kind, tuple(shape))


def _microsoft(g: Graphs) -> None:
    x = g.floats()
    if not x.shape or x.shape[-1] not in SIZES:
        return
    k = x.shape[-1]
    op = g.pick(("QuickGelu", "FastGelu", "BiasGelu", "FusedMatMul", "Gelu"))
    if op == "FusedMatMul":
        n = g.pick(SIZES)
        y = g.op(op, x.name, g.weight(n, k), domain=MICROSOFT, transB=1, alpha=0.5)
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
        axes_order = [*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2]
        y = g.op("Transpose", x.name, perm=axes_order)
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
    ones = helper.make_tensor("value", TensorProto.FLOAT, [1], [0.5])
    filled = g.op("ConstantOfShape", g.constant(np.array([size])), value=ones)
    summed = g.op("Add", filled, g.constant(g.vector(size)))
    g.give(g.op("Add", x.name, g.op("Mul", summed, summed)), x.kind, x.shape or (size,))


def _branch(g: Graphs) -> None:
    """An If whose branches read values around it."""
    x = g.floats()
    condition = g.constant(np.array(g.flip()))
    branches = []
    for op in g.draw(st.permutations(("Relu", "Neg"))):
        made = g.name("b")
        node = helper.make_node(op, [x.name], [made], name=made)
        info = helper.make_tensor_value_info(made, x.kind, None)
        branches.append(helper.make_graph([node], g.name("g"), [], [info]))
    y = g.op("If", condition, then_branch=branches[0], else_branch=branches[1])
    g.give(y, x.kind, x.shape)


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


def _half(g: Graphs) -> None:
    """Through float16, with a product or a norm there."""
    x = g.floats()
    small = g.op("Tanh", x.name)
    half = g.op("Cast", small, to=TensorProto.FLOAT16)
    shape = x.shape
    if x.shape and x.shape[-1] in SIZES and g.flip():
        weight = g.constants[g.weight(x.shape[-1], 32)].astype(np.float16)
        half, shape = g.op("MatMul", half, g.constant(weight)), (*x.shape[:-1], 32)
    elif g.flip():
        half = g.op("Mul", half, g.op("Sigmoid", half))
    g.give(g.op("Cast", half, to=TensorProto.FLOAT), TensorProto.FLOAT, shape)


def _drawn(g: Graphs) -> None:
    """Whether two draws differ: 1 everywhere, but for draws that were made one."""
    x = g.floats()
    a, b = (g.op("RandomNormalLike", x.name, dtype=TensorProto.FLOAT) for _ in range(2))
    equal = g.op("Equal", a, b)
    g.give(g.op("Cast", equal, to=TensorProto.FLOAT), TensorProto.FLOAT, x.shape)


_STEPS = (
    *(_linear,) * 5,
    *(_unary, _binary, _broadcast, _norm, _norm_op, _gated, _microsoft, _layout, _constants),
    *(_branch, _sequence, _whole, _half, _drawn),
)


@st.composite
def models(draw: Any) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """A model, and inputs by name."""
    g = Graphs(draw, draw(st.integers(11, 24)))
    for number in range(draw(st.integers(1, 2))):
        leading: Shape = g.pick((("n",), ("n",), ("m", "n"), (), (2, "n"), ("m",)))
        value = Value(f"x{number}", TensorProto.FLOAT, (*leading, g.pick(SIZES)))
        g.inputs.append(value)
        g.values.append(value)
    for step in draw(st.lists(st.sampled_from(_STEPS), min_size=4, max_size=14)):
        step(g)
    return _finished(g)


def _finished(g: Graphs) -> tuple[onnx.ModelProto, dict[str, Any]]:
    made = [v for v in g.values if v not in g.inputs] or g.values
    last = made[-1:]
    chosen = dict.fromkeys([*g.draw(st.lists(st.sampled_from(made), max_size=3)), *last])
    outputs = []
    for value in chosen:
        outputs.append(value)
        if value in g.inputs or g.draw(st.integers(0, 3)) == 0:
            outputs.append(Value(g.op("Identity", value.name), value.kind, value.shape))
    outputs = [value for value in g.draw(st.permutations(outputs)) if value not in g.inputs]
    unknown = g.draw(st.integers(0, 4)) == 0
    infos = [_info(value, unknown) for value in g.inputs]
    declared = g.pick(("all", "names", "types"))
    graph = helper.make_graph(
        g.nodes,
        "random",
        infos,
        [_info(v, declared != "all", ranked=declared != "types") for v in outputs],
        [numpy_helper.from_array(array, name) for name, array in g.constants.items()],
    )
    opsets = [helper.make_opsetid("", g.opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8 if g.opset < 21 else 10)
    rng = np.random.default_rng(g.count)
    feeds = {
        value.name: rng.standard_normal([LENGTHS.get(d, d) for d in value.shape]).astype(np.float32)
        for value in g.inputs
    }
    return model, feeds


def _info(value: Value, unknown: bool, ranked: bool = True) -> onnx.ValueInfoProto:
    """What is declared of a value: all, only the rank, or only the type."""
    dims = [None] * len(value.shape) if unknown else value.shape
    return helper.make_tensor_value_info(value.name, value.kind, list(dims) if ranked else None)
