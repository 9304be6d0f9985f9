"""Models of one product or lookup with a weight that another tool stored in fewer bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A MatMulNBits.

    Attributes:
        bits: Of a quant.
        block: Inputs that share a scale.
        zeros: "", "packed" or "float" zero points.
        n: Outputs.
        k: Inputs.
        bias: Whether it adds one.
        order: Whether it has a g_idx, which is a plain one.
        seed: Of the random numbers.
    """

    bits: int = 4
    block: int = 32
    zeros: str = ""
    n: int = 24
    k: int = 64
    bias: bool = False
    order: bool = False
    seed: int = 0


def nbits_model(case: Case, **changes: Array) -> onnx.ModelProto:
    """y = x Wᵀ + bias; `changes` replaces constants by name."""
    rng = np.random.default_rng([case.seed, case.bits, case.block, case.n, case.k])
    blocks = -(-case.k // case.block)
    constants: dict[str, Array] = {
        "B": rng.integers(0, 256, (case.n, blocks, case.block * case.bits // 8), np.uint8),
        "scales": rng.standard_normal((case.n, blocks)).astype(np.float32) / 50,
    }
    if case.zeros == "packed":
        row_bytes = -(-blocks * case.bits // 8)
        constants["zero_points"] = rng.integers(0, 256, (case.n, row_bytes), np.uint8)
    if case.zeros == "float":
        points = rng.uniform(0, 1 << case.bits, (case.n, blocks))
        constants["zero_points"] = points.astype(np.float32)
    if case.order:
        constants["g_idx"] = (np.arange(case.k) // case.block).astype(np.int32)
    if case.bias:
        constants["bias"] = rng.standard_normal(case.n).astype(np.float32)
    constants |= changes
    ports = ("B", "scales", "zero_points", "g_idx", "bias")
    inputs = ["x", *(name if name in constants else "" for name in ports)]
    while not inputs[-1]:
        inputs.pop()
    node = helper.make_node(
        "MatMulNBits",
        inputs,
        ["y"],
        domain="com.microsoft",
        N=case.n,
        K=case.k,
        bits=case.bits,
        block_size=case.block,
    )
    return model([node], {"x": ["rows", case.k]}, case.n, constants)


def dequantized_model(
    weight: Array,
    scales: Array,
    zeros: Array | None,
    kind: int,
    *,
    op_type: str = "MatMul",
    opset: int = 21,
    bias: Array | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """y = x DequantizeLinear(W) [+ bias], W ``[K, N]`` or of a Gemm ``[N, K]``.

    Args:
        weight: The quants.
        scales: Float32, of any of the shapes that the op takes.
        zeros: Zero points; None for none.
        kind: Type of the quants.
        op_type: MatMul, Gemm (with transB) or Gather.
        opset: Version of the standard domain.
        bias: Float32 ``[N]``, added by Gemm or by an Add.
        **attributes: Of the DequantizeLinear.
    """
    constants: dict[str, Any] = {"w": quants(weight, kind, "w"), "scales": scales}
    if zeros is not None:
        constants["zeros"] = quants(zeros, kind, "zeros")
    nodes = [
        helper.make_node("DequantizeLinear", [*constants], ["values"], name="dq", **attributes)
    ]
    k, n = weight.shape if op_type == "MatMul" else weight.shape[::-1]
    if bias is not None:
        constants["bias"] = bias
    if op_type == "Gather":
        nodes.append(helper.make_node("Gather", ["values", "input_ids"], ["y"], name="lookup"))
        return model(nodes, {"input_ids": ["rows"]}, k, constants, opset)
    inputs = ["x", "values"]
    if op_type == "Gemm":
        inputs += [] if bias is None else ["bias"]
        nodes.append(helper.make_node("Gemm", inputs, ["y"], name="product", transB=1))
    else:
        nodes.append(helper.make_node("MatMul", inputs, ["y" if bias is None else "p"], name="mm"))
        if bias is not None:
            nodes.append(helper.make_node("Add", ["bias", "p"], ["y"], name="add"))
    return model(nodes, {"x": ["rows", k]}, n, constants, opset)


def quants(array: Array, kind: int, name: str) -> onnx.TensorProto:
    """Whole numbers as a tensor of a type of 4 or 8 bits."""
    return helper.make_tensor(name, kind, array.shape, array.ravel().tolist())


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, list[Any]],
    width: int,
    constants: dict[str, Any],
    opset: int = 21,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model with the output y ``[rows, width]``; inputs are floats, or ids by their name."""
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if name == "input_ids" else kind, shape
            )
            for name, shape in inputs.items()
        ],
        [helper.make_tensor_value_info("y", kind, ["rows", width])],
        [
            array if isinstance(array, onnx.TensorProto) else numpy_helper.from_array(array, name)
            for name, array in constants.items()
        ],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, ir_version=10, opset_imports=opsets)
