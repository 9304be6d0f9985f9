"""The check of a build is one of equivalence: plain ONNX Runtime is the reference."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from kit.beside_onnxruntime import run
from kit.command_line import ok, refused
from tamiz.api.passes import GraphPass, Phase
from tamiz.building.build import Options, build
from tamiz.files.errors import TamizError
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.reporting.report import Report
from tamiz.survey.export import export
from tamiz.survey.self_check import DifferentModelError, Reference

OPTIONS = Options(max_dppl=None, min_cosine=None)


def write(folder: Path, text: str, **constants: Any) -> Path:
    """A model of ONNX's text form, exported."""
    model = onnx.parser.parse_model(text)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def built(source: Path, plugins: Plugins, options: Options = OPTIONS) -> Report:
    """A default build of a model."""
    dense = source.parent / "dense"
    export(str(source), dense, plugins)
    choices = choose(plugins.techniques(), {})
    return build(dense, source.parent / "built", choices, plugins, options)


HEAD = '<ir_version: 8, opset_import: ["" : 18]> g '


@pytest.mark.parametrize(
    "kind",
    [
        *("float", "double", "float16", "bool", "string", "int8", "int16", "int32", "int64"),
        *("uint8", "uint16", "uint32", "uint64"),
    ],
)
def test_inputs_of_every_type_are_made_up(tmp_path: Path, plugins: Plugins, kind: str) -> None:
    source = write(tmp_path, f"{HEAD} ({kind}[n, 3] x) => ({kind}[n, 3] y) {{ y = Identity(x) }}")
    assert built(source, plugins).check == {"max_relative_error": 0.0}


@pytest.mark.parametrize(
    "graph",
    [
        "(float[n, 4] x, int64[k] axes) => (float[a, b, c] y) { y = Unsqueeze(x, axes) }",
        "(float[n, 4] x, int64[2] shape) => (float[a, b] y) { y = Expand(x, shape) }",
        "(float[n] x) => (float[n] y) { y = Log(x) }",
        "(seq(float[n, 2]) s) => (float[m, 2] y) { y = ConcatFromSequence <axis = 0> (s) }",
        "(float[0, 4] x) => (float[0, 4] y) { y = Relu(x) }",
        "(float x) => (float y) { y = Relu(x) }",
        "(float[n, 4] past_state) => (float[n, 4] y) { y = Abs(past_state) }",
    ],
)
def test_inputs_of_odd_meaning_are_made_up(tmp_path: Path, plugins: Plugins, graph: str) -> None:
    assert built(write(tmp_path, f"{HEAD} {graph}"), plugins).check


#: Takes 21 numbers; no input is made up that has them.
HARD = f"{HEAD} (float[a, b] x) => (float[7, 3] y) {{ r = Reshape(x, size) y = Add(r, zeros) }}"
SIZED = {"size": np.array([7, 3]), "zeros": np.zeros((7, 3), np.float32)}


def test_a_build_without_a_valid_input_is_not_checked(tmp_path: Path) -> None:
    source = write(tmp_path, HARD, **SIZED)
    out = ok("build", source, "-o", tmp_path / "built", "--max-dppl=off")
    assert "not checked: no valid input is known; try --sample" in out


def test_a_sample_is_an_input(tmp_path: Path) -> None:
    source, sample = write(tmp_path, HARD, **SIZED), tmp_path / "sample.npz"
    np.savez(sample, x=np.ones((7, 3), np.float32))
    out = ok("build", source, "-o", tmp_path / "built", "--max-dppl=off", f"--sample={sample}")
    assert "runs; all outputs are those of dense, within rounding" in out


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, "lacks the input x"),
        ({"x": np.ones((7, 3))}, r"x is float64, expected tensor(float)"),
        ({"x": np.ones(7, np.float32)}, r"x has shape (7,), expected ['a', 'b']"),
        ({"x": np.ones((7, 3), np.float32), "z": np.ones(1)}, "found z, which is no input"),
        ({"x": np.ones((2, 3), np.float32)}, "does not run on it"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused(
    tmp_path: Path, arrays: Mapping[str, np.ndarray], reason: str
) -> None:
    source, sample = write(tmp_path, HARD, **SIZED), tmp_path / "sample.npz"
    np.savez(sample, **arrays)  # type: ignore[arg-type]
    found = refused("build", source, "-o", tmp_path / "out", "--max-dppl=off", f"--sample={sample}")
    assert reason in found
    assert not (tmp_path / "out").exists()


class _Doubles(GraphPass):
    """A pass that changes constants of one dimension."""

    name = "doubles"
    phase = Phase.RECOGNISE
    needs = frozenset({"clean"})

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        for value in model.graph.initializers.values():
            assert value.const_value is not None
            if len(value.const_value.shape) == 1:
                array = value.const_value.numpy()
                value.const_value = ir.tensor(array * array.dtype.type(2), name=value.name)
        return ir.passes.PassResult(model, modified=True)


class _Passes:
    """The installed plugins, with one more pass."""

    def __init__(self, plugins: Plugins) -> None:
        self._plugins = plugins

    def passes(self, phase: Phase) -> list[type[GraphPass]]:
        found = list(self._plugins.passes(phase))
        return [*found, _Doubles] if phase is Phase.RECOGNISE else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plugins, name)


def test_a_pass_that_changes_an_output_fails_the_build_and_is_named(
    tmp_path: Path, plugins: Plugins
) -> None:
    """Also where the output that changes is not the first."""
    source = write(
        tmp_path,
        f"{HEAD} (float[n, 3] x) => (float[n, 3] y, float[n, 3] z) {{ y = Relu(x) z = Add(x, c) }}",
        c=np.ones(3, np.float32),
    )
    with pytest.raises(TamizError, match=r"z of the new model differs by .* graph pass doubles"):
        built(source, _Passes(plugins))  # type: ignore[arg-type]
    assert not (tmp_path / "built").exists()


def test_a_pass_that_hides_behind_a_lossy_technique_is_found_on_request(
    tmp_path: Path, plugins: Plugins
) -> None:
    """`--check` compares before techniques change outputs, and more than they may."""
    rng = np.random.default_rng(0)
    source = write(
        tmp_path,
        f"{HEAD} (float[n, 64] x) => (float[n, 64] y) {{ p = MatMul(x, w) y = Add(p, b) }}",
        w=rng.standard_normal((64, 64), np.float32),
        b=np.full(64, 0.5, np.float32),
    )
    broken: Any = _Passes(plugins)
    assert built(source, broken).lossy
    shutil.rmtree(tmp_path / "built")
    with pytest.raises(TamizError, match=r"y of the new model differs by .* graph pass doubles"):
        built(source, broken, replace(OPTIONS, check=True))
    assert not (tmp_path / "built").exists()


def test_the_summary_of_a_lossy_build_shows_no_error_of_one_input(tmp_path: Path) -> None:
    """Of random weights that error may be large, and says nothing of the quality."""
    weight = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    graph = "(float[n, 64] x) => (float[n, 64] y) { y = MatMul(x, w) }"
    source = write(tmp_path, f"{HEAD} {graph}", w=weight)
    out = ok("build", source, "-o", tmp_path / "built", "--min-cosine=off")
    assert "runs; 'tamiz eval --against' measures the quality" in out
    assert "%" not in out


def test_the_summary_says_that_passes_were_compared(tmp_path: Path, plugins: Plugins) -> None:
    passes = sum(len(plugins.passes(phase)) for phase in Phase)
    source = write(tmp_path, f"{HEAD} (float[n, 3] x) => (float[n, 3] y) {{ y = Relu(x) }}")
    out = ok("build", source, "-o", tmp_path / "built", "--max-dppl=off", "--check")
    assert f"within rounding; {passes} graph passes change no output" in out


def test_outputs_that_point_elsewhere_are_those_of_another_model(tmp_path: Path) -> None:
    """As of a lossy technique that transposes a weight."""
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    text = f"{HEAD} (float[n, 64] x) => (float[n, 64] y) {{ y = MatMul(x, w) }}"
    (tmp_path / "other").mkdir()
    reference = Reference.of(write(tmp_path, text, w=weight), vocabulary=2)
    assert reference is not None
    rounded = write(tmp_path / "other", text, w=np.round(weight, 1))
    assert reference.compare(rounded, techniques=True, lossy=True)["max_relative_error"] < 0.1
    wrong = write(tmp_path / "other", text, w=weight.T)
    with pytest.raises(DifferentModelError, match="y of the new model has a cosine of"):
        reference.compare(wrong, techniques=True, lossy=True)


def test_a_site_that_multiplies_with_the_wrong_weight_fails_the_build(
    tmp_path: Path, plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the site: constants are shared by name, as they were before."""
    from tamiz.api.editing import GraphEditor

    constant = GraphEditor.constant

    def by_name(self: GraphEditor, label: str, array: np.ndarray) -> ir.Value:
        found = self.model.graph.initializers.get(label)
        return constant(self, label, array) if found is None else found

    monkeypatch.setattr(GraphEditor, "constant", by_name)
    weight = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    body = "{ t = Gemm(x, w) y = Gemm <transB = 1> (t, w) }"
    text = f"{HEAD} (float[n, 64] x) => (float[n, 64] y) {body}"
    with pytest.raises(TamizError, match="the product of BlockMatMul has a cosine of"):
        built(write(tmp_path, text, w=weight), plugins)


def test_small_tensors_only(tmp_path: Path, plugins: Plugins) -> None:
    """The dense bundle keeps them in the model, the built one packed beside it."""
    weight = np.random.default_rng(0).standard_normal((32, 5)).astype(np.float32)
    source = write(
        tmp_path, f"{HEAD} (float[n, 32] x) => (float[n, 5] y) {{ y = MatMul(x, w) }}", w=weight
    )
    assert built(source, plugins).totals.replaced == 1
    x = np.random.default_rng(1).standard_normal((2, 32)).astype(np.float32)
    found = run(str(tmp_path / "built" / "model.onnx"), {"x": x}, ops=True)
    np.testing.assert_allclose(found["y"], x @ weight, atol=0.5)


def test_a_technique_that_is_applied_nowhere_is_told(tmp_path: Path) -> None:
    source = write(tmp_path, f"{HEAD} (float[n, 4] x) => (float[n, 4] y) {{ y = Relu(x) }}")
    out = ok("build", source, "-o", tmp_path / "built", "--max-dppl=off", "--kwta")
    assert "kwta is applied nowhere; to see why: tamiz explain" in out
