"""Weights that other tools stored: bit for bit in a format, and the same products."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray
from onnx import TensorProto, helper

from kit.arrays import random
from kit.beside_onnxruntime import expected, run, scratch
from kit.foreign_weights import Case, dequantized_model, model, nbits_model
from tamiz.api import STAYS
from tamiz_exporters import onnx as exporter
from tamiz_ops import formats

pytestmark = pytest.mark.slow

Array = NDArray[Any]


def exported(proto: onnx.ModelProto, folder: Path, dtype: str = "stored") -> Path:
    onnx.save(proto, folder / "in.onnx")
    dense = folder / "dense"
    dense.mkdir()
    exporter.export(str(folder / "in.onnx"), dense, dtype)
    return dense / "model.onnx"


def values_of(node: ir.Node) -> Array:
    """The weight of a BlockMatMul or BlockGather, float32 [n, k]."""
    name = node.attributes["format"].as_string()
    n, k = (node.attributes[size].as_int() for size in "nk")
    packed = node.inputs[1]
    assert packed is not None
    assert packed.const_value is not None
    return formats.dequantize(formats.find_format(name), packed.const_value.numpy(), n, k)


def check(
    proto: onnx.ModelProto, k: int, rows: int = 3, bias: Array | None = None, ulps: float = 0
) -> str:
    """Compares the weight of the one product bit for bit, and the product. Gives the format.

    With `ulps`, onnxruntime computes scale quant - scale zero, and rounds each: by so many units
    of the largest term may values differ.
    """
    folder = scratch()
    try:
        path = exported(proto, folder)
        ((node,),) = ([n for n in ir.load(path).graph if n.domain == "tamiz"],)
        values = values_of(node)
        unit = np.eye(k, dtype=np.float32)
        added = 0 if bias is None else bias
        whole = expected(proto, {"x": unit}, optimised=False)["y"]
        if bias is None and not ulps:
            np.testing.assert_array_equal(values.T, whole)
        else:
            atol = max(ulps, 1e-6 * float(np.abs(whole).max()))
            np.testing.assert_allclose(values.T + added, whole, rtol=0, atol=atol)
        x = random(rows, k)
        y = run(str(path), {"x": x}, ops=True)["y"]
        exact = x.astype(np.float64) @ values.T.astype(np.float64) + added
        assert np.abs(y - exact).max() <= bound(x, values, added).max()
        again = run(str(exported_again(proto, folder)), {"x": x})["y"]
        np.testing.assert_allclose(again, exact, rtol=0, atol=1e-5 * max(1, np.abs(exact).max()))
    finally:
        shutil.rmtree(folder)
    return node.attributes["format"].as_string()


def exported_again(proto: onnx.ModelProto, folder: Path) -> Path:
    """The same with weights of float32."""
    other = folder / "float32"
    other.mkdir()
    return exported(proto, other, "float32")


def bound(x: Array, weight: Array, bias: Any) -> Array:
    """What rounding x to 16 bits in groups of 32 and sums of float32 may change.

    The terms of a sum are those of quants and of zero points, some 16 times as large as a weight.
    """
    padded = np.pad(np.abs(x), ((0, 0), (0, -x.shape[1] % 32)))
    largest = padded.reshape(len(x), -1, 32).max(-1)
    steps = np.repeat(largest, 32, axis=1)[:, : x.shape[1]] / 32512
    terms = np.abs(weight).T.astype(np.float64)
    additions = 32 * (x.shape[1] + 4) * 2.0**-24
    found: Array = 0.505 * steps @ terms + additions * (np.abs(x) @ terms + np.abs(bias))
    return found


#: onnxruntime takes no float zero points with 8 bits. What has a g_idx and stays has a test below.
CASES = st.builds(
    Case,
    bits=st.sampled_from([2, 4, 8]),
    block=st.sampled_from([16, 32, 64, 128, 256]),
    zeros=st.sampled_from(["", "packed", "float"]),
    n=st.integers(1, 40),
    k=st.sampled_from([1, 15, 16, 31, 32, 33, 64, 100, 128, 160, 256, 300]),
    bias=st.booleans(),
    order=st.booleans(),
    seed=st.integers(0, 99),
).filter(
    lambda case: (
        (case.bits != 8 or case.zeros != "float")
        and (not case.order or (case.bits == 4 and case.zeros != "packed"))
    )
)


@given(case=CASES, rows=st.sampled_from([1, 2, 5, 20]))
@settings(max_examples=20, deadline=None)
def test_matmul_nbits_becomes_a_product_with_the_same_values(case: Case, rows: int) -> None:
    proto = nbits_model(case)
    arrays = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    bias = arrays.get("bias")
    rounds = case.zeros == "float" or case.order
    ulps = 2.0**-22 * (1 << case.bits) * np.abs(arrays["scales"]).max() if rounds else 0
    name = check(proto, case.k, rows, bias, ulps)
    block = "row" if case.block >= case.k else str(case.block)
    assert name in ("q4_0", *(f"affine{case.bits}_{block}{zero}" for zero in ("", "z", "f")))


def test_scales_that_fp16_holds_are_kept_in_fp16() -> None:
    case = Case(n=20, k=64)
    scales = np.random.default_rng(0).standard_normal((20, 2)).astype(np.float16)
    assert check(nbits_model(case, scales=scales.astype(np.float32)), 64) == "q4_0"
    whole = np.full((20, 2), 8, np.float32)
    case = Case(n=20, k=64, zeros="float")
    assert check(nbits_model(case, zero_points=whole), 64, ulps=1e-6) == "affine4_32"
    whole[3, 1] = 7
    assert check(nbits_model(case, zero_points=whole), 64, ulps=1e-6) == "affine4_32z"


@pytest.mark.parametrize("case", [Case(bits=2, order=True), Case(zeros="packed", order=True)])
def test_a_g_idx_that_onnxruntime_reads_otherwise_stays(tmp_path: Path, case: Case) -> None:
    """It takes quants of 2 bits for others, and leaves the zero points out."""
    proto = nbits_model(case)
    x = np.eye(case.k, dtype=np.float32)
    without = expected(nbits_model(dataclasses.replace(case, order=False)), {"x": x})
    assert not np.allclose(expected(proto, {"x": x})["y"], without["y"], rtol=0.1)
    (node,) = ir.load(exported(proto, tmp_path)).graph
    assert node.op_type == "MatMulNBits"
    assert "g_idx" in node.metadata_props[STAYS]


def test_inputs_in_another_order_stay_with_the_reason(tmp_path: Path) -> None:
    order = np.arange(64, dtype=np.int32)[::-1] // 32
    proto = nbits_model(Case(order=True), g_idx=np.ascontiguousarray(order))
    (node,) = ir.load(exported(proto, tmp_path)).graph
    assert node.op_type == "MatMulNBits"
    assert "g_idx" in node.metadata_props[STAYS]


KINDS: dict[int, tuple[int, int]] = {
    TensorProto.INT4: (-8, 8),
    TensorProto.UINT4: (0, 16),
    TensorProto.INT8: (-128, 128),
    TensorProto.UINT8: (0, 256),
}


@given(
    kind=st.sampled_from(list(KINDS)),
    how=st.sampled_from(["tensor", "channel", 16, 32, 96, 128]),
    zero=st.booleans(),
    op_type=st.sampled_from(["MatMul", "Gemm"]),
    n=st.integers(1, 30),
    k=st.sampled_from([32, 96, 100, 384]),
    bias=st.booleans(),
    opset=st.sampled_from([21, 22, 23]),
    seed=st.integers(0, 99),
)
@settings(max_examples=20, deadline=None)
def test_dequantised_weights_become_products(
    kind: int,
    how: str | int,
    zero: bool,
    op_type: str,
    n: int,
    k: int,
    bias: bool,
    opset: int,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    low, high = KINDS[kind]
    by_rows = op_type == "Gemm"
    weight = rng.integers(low, high, (n, k) if by_rows else (k, n))
    attributes: dict[str, int] = {"axis": 0 if by_rows else 1}
    shape: tuple[int, ...] = () if how == "tensor" else (n,)
    if isinstance(how, int):
        attributes = {"axis": 1 if by_rows else 0, "block_size": how}
        blocks = -(-k // how)
        shape = (n, blocks) if by_rows else (blocks, n)
    scales = np.asarray(rng.standard_normal(shape) / 50, np.float32)
    zeros = np.asarray(rng.integers(low, high, shape)) if zero else None
    added = rng.standard_normal(n).astype(np.float32) if bias else None
    proto = dequantized_model(
        weight, scales, zeros, kind, op_type=op_type, opset=opset, bias=added, **attributes
    )
    check(proto, k, 3, added)


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_scales_of_inputs_stay_with_the_reason(tmp_path: Path, op_type: str) -> None:
    weight = np.random.default_rng(0).integers(0, 256, (32, 32))
    axis = 0 if op_type == "MatMul" else 1
    proto = dequantized_model(
        weight, np.ones(32, np.float32), None, TensorProto.UINT8, op_type=op_type, axis=axis
    )
    nodes = {node.op_type: node for node in ir.load(exported(proto, tmp_path)).graph}
    assert nodes[op_type].metadata_props[STAYS] == "has a scale for every input"


def test_a_tied_table_and_head_share_their_constant(tmp_path: Path) -> None:
    weight = np.random.default_rng(0).integers(-128, 128, (50, 64))
    scales = np.random.default_rng(1).standard_normal(50).astype(np.float32)
    proto = dequantized_model(weight, scales, None, TensorProto.INT8, op_type="Gather", axis=0)
    proto.graph.node[1].output[0] = "x"
    proto.graph.node.extend(
        [
            helper.make_node("Transpose", ["values"], ["flipped"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "flipped"], ["y"]),
        ]
    )
    proto.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 50
    path = exported(proto, tmp_path)
    found = ir.load(path).graph
    assert [node.op_type for node in found] == ["BlockGather", "BlockMatMul"]
    assert len(found.initializers) == 1
    ids = {"input_ids": np.array([3, 49, 0])}
    y, reference = run(str(path), ids, ops=True)["y"], expected(proto, ids)["y"]
    np.testing.assert_allclose(y, reference, rtol=0, atol=1e-4 * np.abs(reference).max())


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.UINT4, TensorProto.INT4])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zero", [False, True])
def test_a_block_quantized_table_becomes_a_lookup(
    tmp_path: Path, kind: int, bits: int, zero: bool
) -> None:
    if kind != TensorProto.UINT8 and bits == 8:
        pytest.skip("of 4 bits")
    rng = np.random.default_rng(0)
    low, high = KINDS[kind]
    width = 64 * bits // 8 if kind == TensorProto.UINT8 else 64
    constants: dict[str, Any] = {
        "w": helper.make_tensor("w", kind, (30, width), rng.integers(low, high, 30 * width)),
        "scales": rng.standard_normal((30, 2)).astype(np.float32),
    }
    inputs = ["w", "input_ids", "scales"]
    if zero:
        shape = (30, bits * 2 // 8) if kind == TensorProto.UINT8 else (30, 2)
        points = rng.integers(low, high, shape)
        constants["zeros"] = helper.make_tensor("zeros", kind, shape, points.ravel())
        inputs.append("zeros")
    node = helper.make_node(
        "GatherBlockQuantized",
        inputs,
        ["y"],
        domain="com.microsoft",
        bits=bits,
        block_size=32,
        quantize_axis=1,
    )
    proto = model([node], {"input_ids": ["rows"]}, 64, constants)
    path = exported(proto, tmp_path)
    (found,) = ir.load(path).graph
    assert found.op_type == "BlockGather"
    ids = {"input_ids": np.array([0, 29, 7])}
    reference = expected(proto, ids)["y"]
    np.testing.assert_array_equal(run(str(path), ids, ops=True)["y"], reference)


def test_a_lookup_says_its_type_where_the_source_does_not(tmp_path: Path) -> None:
    """Olive's block-wise quantiser declares nothing of what it renames, and passes need a type."""
    constants: dict[str, Any] = {
        "w": helper.make_tensor("w", TensorProto.UINT8, (30, 32), list(range(240)) * 4),
        "scales": random(30, 2),
    }
    sizes: dict[str, Any] = {"bits": 4, "block_size": 32, "quantize_axis": 1}
    inputs = ["w", "input_ids", "scales"]
    nodes = [
        helper.make_node("GatherBlockQuantized", inputs, ["e"], domain="com.microsoft", **sizes),
        helper.make_node("Neg", ["e"], ["y"]),
    ]
    path = exported(model(nodes, {"input_ids": ["rows"]}, 64, constants), tmp_path)
    (lookup, *_) = ir.load(path).graph
    assert lookup.op_type == "BlockGather"
    assert lookup.outputs[0].dtype == ir.DataType.FLOAT
    assert str(lookup.outputs[0].shape) == "[rows,64]"


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("cast", [False, True])
def test_weights_of_16_bits_are_kept(tmp_path: Path, kind: int, cast: bool) -> None:
    """In a graph of float32 behind a Cast, or in one that computes in 16 bits."""
    values = random(64, 24)
    weight = helper.make_tensor("w", kind, (64, 24), values.ravel().tolist())
    bias = helper.make_tensor("b", kind, (24,), random(24).tolist())
    nodes = [
        helper.make_node("MatMul", ["x", "v" if cast else "w"], ["p"], name="mm"),
        helper.make_node("Add", ["p", "c" if cast else "b"], ["y"], name="add"),
    ]
    if cast:
        nodes.insert(0, helper.make_node("Cast", ["w"], ["v"], to=TensorProto.FLOAT))
        nodes.insert(0, helper.make_node("Cast", ["b"], ["c"], to=TensorProto.FLOAT))
    outer = TensorProto.FLOAT if cast else kind
    proto = model(nodes, {"x": ["rows", 64]}, 24, {"w": weight, "b": bias}, kind=outer)
    path = exported(proto, tmp_path)
    ops = [node for node in ir.load(path).graph if node.domain == "tamiz"]
    name = "f16" if kind == TensorProto.FLOAT16 else "bf16"
    assert [node.attributes["format"].as_string() for node in ops] == [name]
    exact = onnx.numpy_helper.to_array(weight).astype(np.float32)
    np.testing.assert_array_equal(values_of(ops[0]).T, exact)
    if outer == TensorProto.BFLOAT16:
        return  # onnxruntime has no such product to compare with
    x = random(3, 64)
    feeds = {"x": x if cast else x.astype(np.float16)}
    y, reference = run(str(path), feeds, ops=True)["y"], expected(proto, feeds)["y"]
    assert y.dtype == reference.dtype
    scale = float(np.abs(reference.astype(np.float32)).max())
    tolerance = 1e-4 if cast else 2e-3  # onnxruntime rounds to float16
    np.testing.assert_allclose(y, reference, rtol=0, atol=tolerance * scale)
