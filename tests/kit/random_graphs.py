"""Random ONNX graphs in the forms that other tools write, with inputs on which they run.

A graph is made of steps (`kit.random_steps`), each of which adds a few nodes. Weights are whole
numbers of eight bits, times a power of two, so that the formats ``q8_0`` and ``f16`` store them
exactly, whichever dimension their blocks run along. Most products share a weight with others.

All choices come from one `random.Random`: that of a number makes the same graph again, and that of
hypothesis makes graphs that hypothesis can shrink.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MICROSOFT, LOCAL = "com.microsoft", "local"
#: Widths of values; weights have two of the first ones.
SIZES, ODD_SIZE = (32, 64), 40
#: Lengths of the symbolic dimensions in a run.
LENGTHS = {"n": 3, "m": 1}
OPSETS = (11, 24)
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
#: Names of dimensions and lengths.
Shape = tuple[Any, ...]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Value:
    """A value of the graph: its name, element type and shape."""

    name: str
    kind: int
    shape: Shape


@dataclass(frozen=True)
class Example:
    """A model, and inputs by name."""

    model: onnx.ModelProto
    inputs: dict[str, Any]


@dataclass
class Graphs:
    """One graph while it is made.

    Attributes:
        choices: Where all choices come from.
        opset: Version of ONNX's ops.
    """

    choices: random.Random
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    count: int = 0

    def pick(self, choices: Sequence[_T]) -> _T:
        return self.choices.choice(choices)

    def one_in(self, number: int) -> bool:
        """True in one of so many cases."""
        return self.choices.randrange(number) == 0

    def flip(self) -> bool:
        return self.one_in(2)

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def op(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **given: Any) -> str:
        """A node with attributes; returns the name of its last output."""
        names = [self.name() for _ in range(outputs)]
        node = helper.make_node(op, list(inputs), names, domain=domain, name=names[0], **given)
        self.nodes.append(node)
        return names[-1]

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
        """A new initializer ``[rows, columns]``."""
        name = self.name("w")
        rng = np.random.default_rng(len(self.constants))
        array = rng.integers(-127, 128, (rows, columns))
        signs = rng.choice((-127, 127), (rows, columns))
        # The largest of every block of 32, along either dimension, so that q8_0's scales are exact.
        array[::32], array[:, ::32] = signs[::32], signs[:, ::32]
        self.constants[name] = (array / 1024).astype(np.float32)
        return name

    def weights(self, width: int) -> list[str]:
        """Names of the weights that multiply inputs of a width, in either orientation."""
        return [
            name
            for name, array in self.constants.items()
            if name[0] == "w" and width in array.shape
        ]

    def vector(self, size: int) -> np.ndarray:
        rng = np.random.default_rng(self.count)
        return (rng.integers(-8, 9, size) / 8).astype(np.float32)

    def give(self, name: str, kind: int, shape: Shape) -> None:
        self.values.append(Value(name, kind, shape))

    def floats(self) -> Value:
        """A float value; the last one is likelier."""
        found = [v for v in self.values if v.kind == TensorProto.FLOAT]
        return found[-1] if self.flip() else self.pick(found)

    def body(self, node: onnx.NodeProto | Sequence[onnx.NodeProto], made: str, kind: int) -> Any:
        """A graph without inputs inside of a node."""
        nodes = [node] if isinstance(node, onnx.NodeProto) else list(node)
        info = helper.make_tensor_value_info(made, kind, None)
        return helper.make_graph(nodes, self.name("g"), [], [info])


def example(choices: random.Random) -> Example:
    """A random model with inputs on which it should run."""
    from kit.random_steps import STEPS

    g = Graphs(choices, choices.randint(*OPSETS))
    for number in range(choices.randint(1, 2)):
        leading: Shape = g.pick((("n",), ("n",), ("m", "n"), (), (2, "n"), ("m",)))
        width = ODD_SIZE if g.one_in(16) else g.pick(SIZES)
        value = Value(f"x{number}", TensorProto.FLOAT, (*leading, width))
        g.inputs.append(value)
        g.values.append(value)
    for _ in range(choices.randint(3, 14)):
        g.pick(STEPS)(g)
    return _finished(g)


def _finished(g: Graphs) -> Example:
    graph = helper.make_graph(
        g.nodes,
        "random",
        *_ports(g, _outputs(g)),
        [numpy_helper.from_array(array, name) for name, array in g.constants.items()],
    )
    if g.constants and g.one_in(8):  # a constant that a run may set
        name = g.pick(list(g.constants))
        kind = helper.np_dtype_to_tensor_dtype(g.constants[name].dtype)
        graph.input.append(helper.make_tensor_value_info(name, kind, g.constants[name].shape))
    versions = {"": g.opset, MICROSOFT: 1, **({LOCAL: 1} if g.functions else {})}
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*item) for item in versions.items()],
        functions=g.functions,
        ir_version=8 if g.opset < 21 else 10,
    )
    rng = np.random.default_rng(g.count)
    shapes = {value.name: [LENGTHS.get(d, d) for d in value.shape] for value in g.inputs}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    return Example(model, feeds)


def _outputs(g: Graphs) -> list[Value]:
    """The last value and some others, also ones that nodes inside of the graph read."""
    made = [v for v in g.values if v not in g.inputs] or g.values
    some = [g.pick(made) for _ in range(g.choices.randint(0, 3))]
    outputs = []
    for value in dict.fromkeys([*some, made[-1]]):
        if value not in g.inputs:
            outputs.append(value)
        if value in g.inputs or g.one_in(4):
            outputs.append(Value(g.op("Identity", value.name), value.kind, value.shape))
    g.choices.shuffle(outputs)
    return outputs


def _ports(
    g: Graphs, outputs: Sequence[Value]
) -> tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    """What is declared of inputs and outputs: all, only the rank, or only the type."""
    declared = g.pick(("all", "names", "types"))
    inputs = [_info(value, g.one_in(3)) for value in g.inputs]
    return inputs, [_info(v, declared != "all", ranked=declared != "types") for v in outputs]


def _info(value: Value, unknown: bool, ranked: bool = True) -> onnx.ValueInfoProto:
    dims = [None] * len(value.shape) if unknown else value.shape
    return helper.make_tensor_value_info(value.name, value.kind, list(dims) if ranked else None)
