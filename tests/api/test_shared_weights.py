"""Any products that share a weight, in any orientation, form and format, stay right.

The reference is plain ONNX Runtime.
"""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import onnx
from hypothesis import given, settings
from onnx import TensorProto, helper, numpy_helper

from kit.built_in_memory import check
from tamiz.plugins import load

PLUGINS = load()
SIZE = 256


def weight() -> np.ndarray:
    """Square, not symmetric, exact in q8_0 in both orientations."""
    found = np.random.default_rng(0).integers(-127, 128, (SIZE, SIZE)).astype(np.float32)
    found[::32], found[:, ::32] = 127, 127
    return found / 1024


def product(form: str, x: str, y: str) -> list[onnx.NodeProto]:
    """One product of x with the weight w."""
    gemm = {"gemm": 0, "gemm of transposed": 1}
    if form in gemm:
        return [helper.make_node("Gemm", [x, "w"], [y], name=y, transB=gemm[form])]
    read, before = "w", []
    if form != "matmul":
        read, op = f"{y}.w", "Identity" if form == "identity" else "Transpose"
        before = [helper.make_node(op, ["w"], [read])]
    return [*before, helper.make_node("MatMul", [x, read], [y], name=y)]


FORMS = st.sampled_from(["gemm", "gemm of transposed", "matmul", "transpose", "identity"])


@settings(max_examples=60, deadline=None)
@given(st.lists(FORMS, min_size=2, max_size=4), st.sampled_from(["q8_0", "q5_1", "q6_k"]))
def test_products_that_share_a_weight(forms: list[str], format: str) -> None:
    nodes, x = [], "x"
    for number, form in enumerate(forms):
        nodes += product(form, x, f"y{number}")
        x = f"y{number}"
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", SIZE]) for name in ("x", x)
    ]
    graph = helper.make_graph(
        nodes, "g", ports[:1], ports[1:], [numpy_helper.from_array(weight(), "w")]
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    inputs = {"x": np.random.default_rng(1).standard_normal((3, SIZE)).astype(np.float32)}
    builds = [("block-quant", {"format": format})]
    assert len(check(model, inputs, PLUGINS, builds).sites) == len(forms)
