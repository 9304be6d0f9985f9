"""Checks an installed wheel of tamiz-ops: the ops load in ONNX Runtime and give the same numbers.

    python tools/check_ops.py

Needs onnxruntime and onnx beside tamiz-ops; cibuildwheel runs it on every wheel.
"""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort

import tamiz_ops


def main() -> None:
    """Multiplies by int4 weights in a session and compares with NumPy."""
    random = np.random.default_rng(0)
    quants = random.integers(-127, 128, (64, 128)).astype(np.int8)
    packed = tamiz_ops.pack_int8(quants, np.full((64, 4), 0.01, np.float16))
    x = random.standard_normal((3, 128)).astype(np.float32)
    names = onnx.helper
    node = names.make_node("BlockMatMul", ["x", "w"], ["y"], domain="tamiz", bits=8, n=64, k=128)
    kind = onnx.TensorProto.FLOAT
    graph = names.make_graph(
        [node],
        "check",
        [names.make_tensor_value_info("x", kind, [3, 128])],
        [names.make_tensor_value_info("y", kind, [3, 64])],
        [onnx.numpy_helper.from_array(packed, "w")],
    )
    opsets = [names.make_opsetid("", 18), names.make_opsetid("tamiz", 1)]
    model = names.make_model(graph, opset_imports=opsets, ir_version=8)
    options = ort.SessionOptions()
    options.register_custom_ops_library(tamiz_ops.library_path())
    session = ort.InferenceSession(model.SerializeToString(), options)
    found = session.run(["y"], {"x": x})[0]
    expected = x @ tamiz_ops.dequantize(packed, 8, 64, 128).T
    error = float(np.abs(found - expected).max() / np.abs(expected).max())
    assert error < 1e-3, f"BlockMatMul differs from NumPy by {error:.3g} of the largest output"
    print(f"tamiz-ops {tamiz_ops.__version__} ({tamiz_ops.cpu()['isa']}): error {error:.2g}")


if __name__ == "__main__":
    main()
