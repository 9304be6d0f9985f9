"""Lets products and lookups of a graph read the weights as another tool stored them.

A product with quants or floats of 16 bits becomes tamiz.BlockMatMul, a lookup of tokens
tamiz.BlockGather: the ops that a GGUF's weights have. What stays gets the reason as metadata.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from tamiz.api import DOMAIN, OPSET_VERSION, STAYS, TamizError, is_constant, remove_unused
from tamiz_exporters.quantized_weights import (
    Found,
    block_quantized_table,
    constant_matrix,
    nbits_weight,
)
from tamiz_exporters.stored_matrix import NotStoredError, packed, values

_MICROSOFT = "com.microsoft"
#: What quantisers append to the name of a node.
_SUFFIX = re.compile(r"_(Q[248]|quant)$")
_IDS = "input_ids"


def store_weights(model: ir.Model, path: object, *, unpack: bool = False) -> bool:
    """Rewrites the products and lookups of the main graph in place.

    Args:
        model: The graph; constants are read when they are written.
        path: The file, for messages.
        unpack: Whether the weights become float32 instead.

    Returns:
        Whether it rewrote any.
    """
    rewriter = _Rewriter(model, path, unpack)
    for node in list(model.graph):
        try:
            rewriter.rewrite(node)
        except NotStoredError as reason:
            node.metadata_props[STAYS] = str(reason)
    if not rewriter.constants:
        return False
    remove_unused(model)
    return True


class _Rewriter:
    def __init__(self, model: ir.Model, path: object, unpack: bool) -> None:
        self.model = model
        self.path = path
        self.unpack = unpack
        #: Constants that were made, by what they hold and whether they are ``[K, N]``.
        self.constants: dict[object, ir.Value] = {}

    def rewrite(self, node: ir.Node) -> None:
        """Rewrites one node if it has a weight that is stored in fewer bits.

        Raises:
            NotStoredError: No format holds its weight.
        """
        kind = (node.domain, node.op_type)
        if kind == (_MICROSOFT, "MatMulNBits"):
            bias = node.inputs[5] if len(node.inputs) > 5 else None
            self.product(node, nbits_weight(node), _vector(bias))
        elif kind == (_MICROSOFT, "GatherBlockQuantized"):
            if not _are_ids(node.inputs[1]):
                raise NotStoredError(f"looks up something else than {_IDS}")
            self.lookup(node, block_quantized_table(node), node.inputs[1])
        elif kind == ("", "Gather") and _are_ids(node.inputs[1]) and _number(node, "axis", 0) == 0:
            found = constant_matrix(node.inputs[0], by_rows=True)
            if found is not None:
                self.lookup(node, found, node.inputs[1])
        elif kind == ("", "MatMul"):
            found = constant_matrix(node.inputs[1], by_rows=False)
            if found is not None:
                self.product(node, found, None)
        elif kind == ("", "Gemm"):
            self.gemm(node)

    def gemm(self, node: ir.Node) -> None:
        found = constant_matrix(node.inputs[1], by_rows=_number(node, "transB", 0) == 1)
        if found is None:
            return
        for name, expected in (("transA", 0), ("alpha", 1.0), ("beta", 1.0)):
            if _number(node, name, expected) != expected:
                raise NotStoredError(f"belongs to a Gemm with {name} = {_number(node, name, 0)}")
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        vector = _vector(bias)
        if bias is not None and vector is None:
            raise NotStoredError("belongs to a Gemm that adds a computed value")
        self.product(node, found, vector)

    def product(self, node: ir.Node, found: Found, bias: np.ndarray | ir.Value | None) -> None:
        """Puts a BlockMatMul, or a MatMul of float32, in place of a product."""
        n = found.matrix.n
        if bias is None and (add := _bias_add(node, n)) is not None:
            bias = _vector(_other(add, node.outputs[0]))
            output, last = add.outputs[0], add
        else:
            output, last = node.outputs[0], node
        shape = bias.shape if bias is not None else (n,)
        if shape is not None and list(shape) not in ([n], [1, n]):
            raise NotStoredError(f"belongs to a product that adds a value of shape {shape}")
        vector = None if bias is None else self.bias_value(node, bias)
        if self.unpack:
            self.dense_product(node, found, vector, last)
            return
        inputs = [node.inputs[0], self.constant(found), *([] if vector is None else [None, vector])]
        self.put(node, last, self.op("BlockMatMul", node, inputs, found, n), output)

    def dense_product(
        self, node: ir.Node, found: Found, bias: ir.Value | None, last: ir.Node
    ) -> None:
        name = _SUFFIX.sub("", node.name or node.op_type)
        weight = self.constant(found, transposed=True)
        output = last.outputs[0]
        product = ir.node("MatMul", [node.inputs[0], weight], name=name)
        product.outputs[0].name = f"{output.name}.product" if bias is not None else None
        product.outputs[0].type = output.type
        if bias is None:
            self.put(node, last, product, output)
            return
        self.model.graph.insert_before(last, product)
        added = ir.node("Add", [product.outputs[0], bias], name=f"{name}/bias")
        self.put(node, last, added, output)

    def lookup(self, node: ir.Node, found: Found, ids: ir.Value | None) -> None:
        """Puts a BlockGather, or a Gather of float32, in place of a lookup."""
        if self.unpack:
            new = ir.node("Gather", [self.constant(found), ids], name=node.name)
        else:
            new = self.op("BlockGather", node, [ids, self.constant(found)], found, found.matrix.k)
        self.put(node, node, new, node.outputs[0])

    def op(
        self,
        op_type: str,
        node: ir.Node,
        inputs: list[ir.Value | None],
        found: Found,
        width: int,
    ) -> ir.Node:
        matrix = found.matrix
        attributes: dict[str, str | int] = {"format": matrix.format.name}
        attributes |= {"n": matrix.n, "k": matrix.k}
        name = _SUFFIX.sub("", node.name or node.op_type)
        new = ir.node(op_type, inputs, attributes, domain=DOMAIN, name=name)
        self.model.graph.opset_imports[DOMAIN] = OPSET_VERSION
        new.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
        first = inputs[0]
        if first is not None and first.shape is not None:
            dims = list(first.shape) if op_type == "BlockGather" else list(first.shape)[:-1]
            new.outputs[0].shape = ir.Shape([*dims, width])
        return new

    def put(self, node: ir.Node, last: ir.Node, new: ir.Node, output: ir.Value) -> None:
        """Puts `new` in place of the nodes from `node` to `last`."""
        value = new.outputs[0]
        value.type = output.type if output.type is not None else value.type
        value.shape = output.shape if output.shape is not None else value.shape
        new.metadata_props.update(node.metadata_props)
        old = [node] if node is last else [last, node]
        graph = self.model.graph
        graph.insert_before(last, new)
        value.name, output.name = output.name, None
        if output.is_graph_output():
            graph.outputs[list(graph.outputs).index(output)] = value
        output.replace_all_uses_with(value)
        graph.remove(old, safe=True)

    def constant(self, found: Found, *, transposed: bool = False) -> ir.Value:
        """The constant that holds a weight; two sites of one weight share it."""
        key = (*found.key, transposed)
        if key in self.constants:
            return self.constants[key]
        matrix, name = found.matrix, f"{found.name}.{'values' if self.unpack else 'packed'}"

        def read() -> ir.TensorProtocol:
            try:
                if not self.unpack:
                    return ir.Tensor(packed(matrix))
                rows = values(matrix)
            except ValueError as error:
                raise TamizError(f"{self.path}: weight {found.name}: {error}") from error
            return ir.Tensor(np.ascontiguousarray(rows.T) if transposed else rows)

        if self.unpack:
            sizes = (matrix.k, matrix.n) if transposed else (matrix.n, matrix.k)
            tensor = ir.LazyTensor(read, ir.DataType.FLOAT, ir.Shape(sizes), name=name)
        else:
            shape = ir.Shape(matrix.format.packed_shape(matrix.n, matrix.k))
            tensor = ir.LazyTensor(read, ir.DataType.UINT8, shape, name=name)
        self.constants[key] = self.register(name, tensor)
        return self.constants[key]

    def bias_value(self, node: ir.Node, bias: np.ndarray | ir.Value) -> ir.Value:
        if isinstance(bias, ir.Value) and bias.shape is not None and len(bias.shape) == 1:
            return bias
        array = bias.const_value.numpy() if isinstance(bias, ir.Value) else bias  # type: ignore[union-attr]
        tensor = ir.tensor(np.asarray(array, np.float32).ravel())
        return self.register(f"{node.name or node.op_type}.bias", tensor)

    def register(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        graph, free, count = self.model.graph, name, 1
        while free in graph.initializers:
            count += 1
            free = f"{name}.{count}"
        tensor.name = free
        value = ir.Value(
            name=free,
            shape=ir.Shape(tensor.shape.numpy()),
            type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )
        graph.register_initializer(value)
        return value


def _are_ids(value: ir.Value | None) -> bool:
    """Whether a value is the ids of tokens: lookups by others may be of rows before the first."""
    return value is not None and value.is_graph_input() and value.name == _IDS and _is_long(value)


def _is_long(value: ir.Value) -> bool:
    return value.dtype is ir.DataType.INT64


def _bias_add(product: ir.Node, n: int) -> ir.Node | None:
    """The Add that alone consumes a product and adds a constant ``[n]`` to it."""
    output = product.outputs[0]
    consumers = output.consumers()
    if len(consumers) != 1 or output.is_graph_output():
        return None
    add = consumers[0]
    if (add.domain, add.op_type) != ("", "Add") or add.graph is not product.graph:
        return None
    other = _vector(_other(add, output))
    return add if other is not None and list(other.shape or ()) == [n] else None


def _other(add: ir.Node, value: ir.Value) -> ir.Value | None:
    return add.inputs[0] if add.inputs[1] is value else add.inputs[1]


def _vector(value: ir.Value | None) -> np.ndarray | ir.Value | None:
    """A constant vector, or the floats of one that is dequantised; None where it is none."""
    if value is None:
        return None
    if is_constant(value):
        return value if value.dtype in (ir.DataType.FLOAT, *_SIXTEEN) else None
    node = value.producer()
    if node is None or (node.domain, node.op_type) != ("", "DequantizeLinear"):
        return None
    parts = list(_constants(node))
    if len(parts) < 2 or parts[0].ndim > 1 or parts[1].dtype != np.float32:
        return None
    quants = parts[0].astype(np.int64) - (parts[2].astype(np.int64) if len(parts) > 2 else 0)
    return np.asarray(quants.astype(np.float32) * parts[1], np.float32)


_SIXTEEN = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


def _constants(node: ir.Node) -> Iterator[np.ndarray]:
    """The constants that a node reads, as far as they are."""
    for value in node.inputs:
        if value is None or not is_constant(value) or value.const_value is None:
            return
        yield value.const_value.numpy()


def _number(node: ir.Node, name: str, default: float) -> float:
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.value)
