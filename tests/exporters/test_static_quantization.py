"""Models that quantize_static wrote with QDQ: their weights become products, their steps stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_static,
)

from kit.arrays import random
from kit.beside_onnxruntime import run
from tamiz.plugins import Plugins
from tamiz.survey.export import export

WEIGHT_TYPES = {"int8": QuantType.QInt8, "uint8": QuantType.QUInt8, "int4": QuantType.QInt4}


class Samples(CalibrationDataReader):
    """Eight random inputs."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self._left: Iterator[np.ndarray] = iter(
            [rng.standard_normal((16, 64)).astype(np.float32) for _ in range(8)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        sample = next(self._left, None)
        return None if sample is None else {"x": sample}


def two_layers() -> onnx.ModelProto:
    """y = relu(x W1) W2 + b."""
    arrays: dict[str, np.ndarray] = {
        "w1": random(64, 96) / 8,
        "w2": random(96, 32) / 8,
        "b": random(32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 32])
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "layers", [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per_channel", [False, True], ids=["a tensor", "a channel"])
@pytest.mark.parametrize("weight_type", WEIGHT_TYPES)
def test_both_products_are_stored_and_outputs_are_within_a_step(
    tmp_path: Path, plugins: Plugins, weight_type: str, per_channel: bool
) -> None:
    """A sum that lies between two steps may be rounded to either; all others are equal."""
    onnx.save(two_layers(), tmp_path / "float.onnx")
    source = tmp_path / "model.onnx"
    quantize_static(
        tmp_path / "float.onnx",
        source,
        Samples(),
        quant_format=QuantFormat.QDQ,
        per_channel=per_channel,
        weight_type=WEIGHT_TYPES[weight_type],
        activation_type=QuantType.QUInt8,
    )
    dense = export(str(source), tmp_path / "dense", plugins)
    types = [node.op_type for node in onnx.load(dense.model).graph.node]
    assert types.count("BlockMatMul") == 2
    assert types.count("QuantizeLinear") == 3  # the input, and what each product gives
    x = {"x": random(40, 64)}
    expected, got = run(str(source), x, optimised=False)["y"], run(str(dense.model), x, ops=True)
    scales = {t.name: t for t in onnx.load(source).graph.initializer}
    step = numpy_helper.to_array(scales["y_scale"])
    difference = np.abs(got["y"] - expected)
    assert difference.max() <= 1.001 * step
    assert (difference > 1e-6).mean() <= 0.01
