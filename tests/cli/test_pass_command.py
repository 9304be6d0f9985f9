"""``tamiz pass``: chosen passes over any file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from kit.command_line import ok, refused, tamiz
from kit.equal_passes import outputs
from kit.graph_forms import FORMS
from tamiz.api.passes import GraphPass, Phase
from tamiz.building.write import rewritten_file
from tamiz.files.errors import TamizError

NORM = next(form for form in FORMS if form.title.startswith("`SkipSimplified"))
GATED = next(form for form in FORMS if form.part == "feed forward")


def write(path: Path, model: ir.Model) -> Path:
    onnx.save(ir.to_proto(model), path)
    return path


def domains(path: Path) -> list[str]:
    return [f"{node.domain}.{node.op_type}" for node in ir.load(path).graph]


def test_all_passes_that_recognise(tmp_path: Path) -> None:
    source = write(tmp_path / "in.onnx", GATED.graph())
    shown = ok("pass", source, "-o", tmp_path / "out.onnx", "--check")
    assert "6 nodes became 4" in shown
    assert "outputs equal within rounding after each" in shown
    assert "1 SwiGLU; register the library of tamiz-ops" in shown
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 3, 64), np.float32)}
    before, after = (outputs(ir.load(tmp_path / n), feeds) for n in ("in.onnx", "out.onnx"))
    np.testing.assert_allclose(after["y"], before["y"], atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]


def test_chosen_passes_only(tmp_path: Path) -> None:
    source = write(tmp_path / "in.onnx", NORM.graph())
    found = json.loads(
        ok("pass", source, "-o", tmp_path / "a.onnx", "--only", "swiglu,plain-ops", "--json")
    )
    assert found["passes"] == ["clean-up", "plain-ops", "swiglu"]
    assert found["ops"] == {}
    assert "com.microsoft.SkipSimplifiedLayerNormalization" in domains(tmp_path / "a.onnx")
    found = json.loads(
        ok("pass", source, "-o", tmp_path / "b.onnx", "--only", "rms-norm", "--json")
    )
    assert found["ops"] == {"RMSNorm": 2}


def test_external_data_stays_external(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    proto = ir.to_proto(GATED.graph())
    onnx.save(
        proto,
        tmp_path / "in" / "m.onnx",
        save_as_external_data=True,
        location="weights",
        size_threshold=0,
    )
    ok("pass", tmp_path / "in" / "m.onnx", "-o", tmp_path / "out.onnx", "--only=swiglu", "--check")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out.onnx", "out.onnx.data"]


def test_the_list() -> None:
    shown = ok("pass", "--list")
    assert [name for name in ("clean-up", "rms-norm", "fuse-nodes") if name not in shown] == []
    listed = json.loads(ok("pass", "--list", "--json"))["passes"]
    assert {row["phase"] for row in listed} == {"recognise", "fuse"}
    assert all(row["does"].endswith(".") for row in listed)


def test_what_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "in.onnx", GATED.graph())
    before = source.read_bytes()
    target = tmp_path / "out.onnx"
    assert "is the input" in refused("pass", source, "-o", source)
    assert "did you mean 'rms-norm'?" in refused("pass", source, "-o", target, "--only=rmsnorm")
    assert "ends in .onnx" in refused("pass", source, "-o", tmp_path / "out")
    assert "no such folder" in refused("pass", source, "-o", tmp_path / "none" / "out.onnx")
    assert "no such file" in refused("pass", tmp_path / "none.onnx", "-o", target)
    assert tamiz("pass", source).exit_code == 2
    (tmp_path / "bad.onnx").write_bytes(b"\xff\xff")
    assert "not an ONNX model" in refused("pass", tmp_path / "bad.onnx", "-o", target)
    target.write_text("mine")
    assert "exists" in refused("pass", source, "-o", target)
    assert (target.read_text(), source.read_bytes()) == ("mine", before)


class _Broken(GraphPass):
    name = "broken"
    phase = Phase.RECOGNISE

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        product = next(node for node in model.graph if node.op_type == "MatMul")
        again = ir.node("Neg", [product.outputs[0]], name="again")
        again.outputs[0].name = "again"
        product.outputs[0].replace_all_uses_with(again.outputs[0])
        again.replace_input_with(0, product.outputs[0])
        model.graph.insert_after(product, again)
        return ir.passes.PassResult(model, modified=True)


def test_a_pass_that_changes_an_output_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plugins: Any
) -> None:
    source = write(tmp_path / "in.onnx", GATED.graph())
    monkeypatch.setattr(rewritten_file, "chosen_passes", lambda *_: [_Broken])
    with pytest.raises(
        TamizError, match=r"y of the new model differs.*after the graph pass broken"
    ):
        rewritten_file.rewrite_file(source, tmp_path / "out.onnx", plugins, check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["in.onnx"]
