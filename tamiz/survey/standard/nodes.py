"""Adds standard nodes and constants to a graph before a node that they replace."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx_ir as ir

from tamiz.api.ports import input_of

Made = TypeVar("Made")
#: From this version of ONNX's ops on, axes of a reduction are an input.
_AXES_ARE_INPUTS = 18


#: What ops compute that do not compute the type of their first input.
_TYPES = {
    **dict.fromkeys(("And", "Greater", "LessOrEqual"), ir.DataType.BOOL),
    **dict.fromkeys(("GatherBlockQuantized", "MatMulNBits", "Where"), ir.DataType.FLOAT),
    "Shape": ir.DataType.INT64,
}


def _type(node: ir.Node) -> ir.DataType:
    """What a new node computes."""
    if node.op_type == "Cast":
        return ir.DataType(node.attributes["to"].as_int())
    first = node.inputs[0].dtype if node.inputs and node.inputs[0] is not None else None
    return _TYPES.get(node.op_type) or first or ir.DataType.FLOAT


class NoStandardFormError(Exception):
    """What of a node has no standard form: "" for all of it, or "with …" and a space."""


def needed(node: ir.Node, port: str) -> ir.Value:
    """An input that an op of the domain `tamiz` always has."""
    value = input_of(node, port)
    assert value is not None
    return value


@dataclass
class Nodes:
    """Nodes before one of a graph.

    Attributes:
        model: The model.
        at: The node that the new ones come before, and whose name they have.
        made: What nodes of several layers share, by what it is.
        widths: Last dimensions of values that were made.
    """

    model: ir.Model
    at: ir.Node
    made: dict[Hashable, Any]
    widths: dict[ir.Value, int]
    _count: int = field(default=0, init=False)

    @property
    def _name(self) -> str:
        return self.at.name or self.at.op_type

    def shared(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What several nodes read; made before the first of them."""
        if key not in self.made:
            self.made[key] = make()
        found: Made = self.made[key]
        return found

    def width(self, value: ir.Value) -> int | None:
        """The last dimension of a value; None where nothing says it."""
        known = self.widths.get(value)
        if known is None and value.shape is not None and len(value.shape):
            last = value.shape[-1]
            known = last if isinstance(last, int) else None
        return known

    def op(
        self, op_type: str, *inputs: ir.Value | None, domain: str = "", **attributes: Any
    ) -> ir.Value:
        """The output of a new node."""
        return self.ops(op_type, *inputs, domain=domain, count=1, **attributes)[0]

    def ops(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        domain: str = "",
        count: int,
        **attributes: Any,
    ) -> Sequence[ir.Value]:
        """The outputs of a new node."""
        name = f"{self._name}/{op_type}.{self._count}"
        self._count += 1
        node = ir.node(
            op_type, list(inputs), attributes, domain=domain, name=name, num_outputs=count
        )
        for port, value in enumerate(node.outputs):
            value.name, value.type = f"{name}/{port}", ir.TensorType(_type(node))
        self.model.graph.insert_before(self.at, node)
        return node.outputs

    def floats(self, *values: float) -> ir.Value:
        """A constant of float32: a scalar, or a vector of several."""
        array = np.array(values if len(values) > 1 else values[0], np.float32)
        return self._small(f"float.{'_'.join(map(repr, values))}", array)

    def integers(self, *values: int) -> ir.Value:
        """A constant vector of int64."""
        return self._small(f"int.{'_'.join(map(str, values))}", np.array(values, np.int64))

    def whole(self, value: int) -> ir.Value:
        """A constant scalar of int64."""
        return self._small(f"int.scalar.{value}", np.array(value, np.int64))

    def mean(self, value: ir.Value) -> ir.Value:
        """The mean over the last dimension, which stays."""
        if self.model.graph.opset_imports.get("", 0) >= _AXES_ARE_INPUTS:
            return self.op("ReduceMean", value, self.integers(-1), keepdims=1)
        return self.op("ReduceMean", value, axes=[-1], keepdims=1)

    def constant(
        self, name: str, shape: Sequence[int], dtype: ir.DataType, read: Callable[[], np.ndarray]
    ) -> ir.Value:
        """The constant of this name, which is read when it is written."""
        known = self.model.graph.initializers
        if name in known:
            return known[name]
        tensor = ir.LazyTensor(
            lambda: ir.tensor(read(), name=name), dtype=dtype, shape=ir.Shape(shape), name=name
        )
        return self._register(name, tensor)

    def replace(self, *values: ir.Value | None) -> None:
        """Lets new values be what the node gave; None where nothing reads it."""
        for old, new in zip(self.at.outputs, values, strict=False):
            if new is None:
                continue
            name, old.name = old.name, None
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            if new.is_graph_output() and (new.is_graph_input() or new.is_initializer()):
                new = self.op("Identity", new)
            if new.producer() is not None and new.is_graph_output():
                new.name, new.type, new.shape = name, old.type, old.shape
        self.model.graph.remove(self.at, safe=True)

    def _small(self, name: str, array: np.ndarray) -> ir.Value:
        known = self.model.graph.initializers
        return known[name] if name in known else self._register(name, ir.tensor(array, name=name))

    def _register(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        value = ir.Value(
            name=name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.model.graph.register_initializer(value)
        return value
