"""Which onnxruntime reads a model; the releases were tried one by one, from 1.20 to 1.32."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tamiz.files.bundle import Source, write_manifest
from tamiz.files.onnx_versions import graph_inputs, onnx_versions


@pytest.mark.parametrize(
    ("ir", "opset", "release"),
    [
        (8, 17, "1.20"),
        (10, 21, "1.20"),
        (10, 22, "1.21"),
        (11, 17, "1.23"),
        (8, 23, "1.23"),
        (13, 17, "1.24"),
        (8, 26, "1.25"),
        (99, 17, "1.25"),
    ],
)
def test_the_oldest_release_that_reads_a_model_is_in_the_manifest(
    tmp_path: Path, ir: int, opset: int, release: str
) -> None:
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
    node = helper.make_node("Abs", ["x"], ["y"])
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("tamiz", 1)]
    model = helper.make_model(graph, ir_version=ir, opset_imports=opsets)
    onnx.save(model, tmp_path / "model.onnx")
    found = onnx_versions(tmp_path / "model.onnx")
    assert (found.ir, found.opsets) == (ir, {"": opset, "tamiz": 1})
    manifest = write_manifest(tmp_path, "dense", Source("model.onnx"))
    assert manifest.min_onnxruntime == release


def test_inputs_are_named_without_onnx(tmp_path: Path) -> None:
    names = ["input_ids", "past_key_values.0.key"]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n" * 2000]) for name in names
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Add", names, ["y"])
    model = helper.make_model(helper.make_graph([node], "g", inputs, [output]))
    onnx.save(model, tmp_path / "model.onnx")
    assert graph_inputs(tmp_path / "model.onnx") == names
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString()[:-50])
    assert set(graph_inputs(tmp_path / "model.onnx")) <= set(names)
    (tmp_path / "model.onnx").write_bytes(b"")
    assert graph_inputs(tmp_path / "model.onnx") == []
