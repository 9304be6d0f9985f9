"""Adds nodes and initializers to a graph that an exporter makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN
from tamiz_exporters.decoder_config import Packed


class GraphBuilder:
    """A graph in the making: nodes in their order, initializers by name.

    Attributes:
        nodes: The nodes.
        initializers: The constants.
        packed: Weights that stay in the format of their source.
    """

    def __init__(self, weights: Mapping[str, ir.TensorProtocol | Packed]) -> None:
        """Makes an initializer of every weight.

        Args:
            weights: Tensors by name; those of linear layers are ``[K, N]``.
        """
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        self.packed = {name: w for name, w in weights.items() if isinstance(w, Packed)}
        for name, weight in weights.items():
            self.initialize(name, weight.tensor if isinstance(weight, Packed) else weight)

    def initialize(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Adds a constant under a name; returns its value."""
        value = ir.Value(
            name=name,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        self.initializers[name] = value
        return value

    def constant(self, value: Any, dtype: type = np.int64) -> ir.Value:
        """Returns the one initializer that holds this value."""
        array: np.ndarray = np.asarray(value, dtype)
        numbers = "_".join(str(number) for number in array.ravel().tolist())
        name = f"constant.{array.dtype}.{array.ndim}d.{numbers}"
        if name in self.initializers:
            return self.initializers[name]
        return self.initialize(name, ir.tensor(array, name=name))

    def op(
        self,
        op_type: str,
        name: str,
        *inputs: ir.Value,
        output: ir.Value | None = None,
        **attrs: Any,
    ) -> ir.Value:
        """Adds a node of ONNX; returns its one output."""
        output = output or ir.Value(name=f"{name}_output_0")
        attributes = [ir.convenience.convert_attribute(key, attrs[key]) for key in attrs]
        self.nodes.append(ir.Node("", op_type, inputs, attributes, outputs=[output], name=name))
        return output

    def packed_op(
        self,
        op_type: str,
        name: str,
        x: ir.Value,
        weight: str,
        bias: ir.Value | None = None,
        output: ir.Value | None = None,
    ) -> ir.Value:
        """A product with a packed weight, or a lookup; its shape is said, as ONNX infers none."""
        packed = self.packed[weight]
        width = packed.n if op_type == "BlockMatMul" else packed.k
        output = output or typed_value(
            f"{name}_output_0", ir.DataType.FLOAT, "batch_size", "sequence_length", width
        )
        attributes = [
            ir.convenience.convert_attribute(*pair) for pair in packed.attributes().items()
        ]
        inputs = [x, self.initializers[weight], *([] if bias is None else [None, bias])]
        node = ir.Node(DOMAIN, op_type, inputs, attributes, outputs=[output], name=name)
        self.nodes.append(node)
        return output

    def own_op(
        self,
        op_type: str,
        name: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any],
        outputs: list[ir.Value],
    ) -> None:
        """Adds a node of tamiz' domain; inputs that are missing at the end are left out."""
        while inputs[-1] is None:
            inputs = inputs[:-1]
        converted = [ir.convenience.convert_attribute(*pair) for pair in attributes.items()]
        self.nodes.append(ir.Node(DOMAIN, op_type, inputs, converted, outputs=outputs, name=name))

    def times(self, name: str, x: ir.Value, factor: float) -> ir.Value:
        """x · factor; x itself where the factor is 1."""
        if factor == 1:
            return x
        return self.op("Mul", f"{name}/Mul", x, self.constant(factor, np.float32))

    def rms_norm(
        self,
        module: str,
        x: ir.Value,
        epsilon: float,
        output: ir.Value | None = None,
        scope: str = "",
    ) -> ir.Value:
        """w · x / sqrt(mean(x²) + ε).

        Args:
            module: What the weight is called, see `weight`.
            x: What is normed.
            epsilon: ε.
            output: The result, where it exists.
            scope: What the nodes are called; by default as the weight.
        """
        name = scope or module
        square = self.op("Pow", f"{name}/Pow", x, self.constant(2.0, np.float32))
        mean = self.op("ReduceMean", f"{name}/ReduceMean", square, self.constant([-1]), keepdims=1)
        added = self.op("Add", f"{name}/Add", mean, self.constant(epsilon, np.float32))
        root = self.op("Sqrt", f"{name}/Sqrt", added)
        inverse = self.op("Div", f"{name}/Div", self.constant(1.0, np.float32), root)
        scaled = self.op("Mul", f"{name}/Mul", x, inverse)
        return self.op("Mul", f"{name}/Mul_1", self.weight(module), scaled, output=output)

    def layer_norm(
        self,
        name: str,
        x: ir.Value,
        epsilon: float,
        output: ir.Value | None = None,
        module: str = "",
    ) -> ir.Value:
        """w · (x - mean(x)) / sqrt(var(x) + ε) + b; b is optional.

        Args:
            name: What its node is called.
            x: ``[..., width]``.
            epsilon: ε.
            output: The result, where it exists.
            module: What its weights are called; by default as its node, with dots.
        """
        module = module or name[1:].replace("/", ".")
        bias = self.initializers.get(f"{module}.bias")
        inputs = [x, self.initializers[f"{module}.weight"], *([] if bias is None else [bias])]
        node = f"{name}/LayerNormalization"
        return self.op("LayerNormalization", node, *inputs, output=output, axis=-1, epsilon=epsilon)

    def weight(self, name: str, part: str = "weight") -> ir.Value:
        """The constant of a module: `name` is its path with slashes, ``/model/norm``."""
        return self.initializers[f"{name[1:].replace('/', '.')}.{part}"]

    def has(self, name: str, part: str = "weight") -> bool:
        """Whether a module has the constant; see `weight`."""
        return f"{name[1:].replace('/', '.')}.{part}" in self.initializers

    def linear(
        self, name: str, x: ir.Value, module: str = "", output: ir.Value | None = None
    ) -> ir.Value:
        """x·W + b of a linear module; b is optional.

        Args:
            name: What its nodes are called.
            x: ``[..., K]``.
            module: What its weights are called; by default as its nodes, with dots.
            output: The result, where it exists.
        """
        module = module or name[1:].replace("/", ".")
        weight, bias = f"{module}.weight", self.initializers.get(f"{module}.bias")
        if weight in self.packed:
            return self.packed_op("BlockMatMul", f"{name}/MatMul", x, weight, bias, output)
        inner = output if bias is None else None
        y = self.op("MatMul", f"{name}/MatMul", x, self.initializers[weight], output=inner)
        if bias is not None:
            y = self.op("Add", f"{name}/Add", bias, y, output=output)
        return y


def typed_value(name: str, dtype: ir.DataType, *shape: Any) -> ir.Value:
    """A value of a type and a shape; names stand for sizes that differ from run to run."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
