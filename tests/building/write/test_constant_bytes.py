"""Bytes of a model, also of constants inside of conditionals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from kit.command_line import ok
from tamiz.building.write.rewriting import constant_bytes
from tamiz.files.bundle import Bundle
from tamiz.plugins import Plugins
from tamiz.survey.survey import survey


def branch(name: str, *, inside: bool) -> onnx.GraphProto:
    """y = w, with w as an initializer or a Constant node of the branch."""
    weight = numpy_helper.from_array(np.full((16, 64), len(name), np.float32), f"{name}.w")
    y = helper.make_tensor_value_info(f"{name}.y", TensorProto.FLOAT, [16, 64])
    nodes = [helper.make_node("Identity", [f"{name}.w"], [f"{name}.y"])]
    if inside:
        nodes.insert(0, helper.make_node("Constant", [], [f"{name}.w"], value=weight))
    return helper.make_graph(nodes, name, [], [y], [] if inside else [weight])


def test_constants_of_branches_count(tmp_path: Path, plugins: Plugins) -> None:
    branches = {f"{name}_branch": branch(name, inside=name == "then") for name in ("then", "else")}
    graph = helper.make_graph(
        [helper.make_node("If", ["c"], ["w"], **branches), helper.make_node("Add", "xw", "y")],
        "g",
        [
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 64])],
    )
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(model, tmp_path / "model.onnx")
    ok("export", tmp_path / "model.onnx", "-o", tmp_path / "dense")
    found = survey(Bundle.open(tmp_path / "dense"), plugins).model
    assert constant_bytes(found) == 2 * 4 * 16 * 64
    shown = ok("inspect", tmp_path / "dense")
    assert "inputs, for --sample: c bool[], x float32[n, 64]" in shown
