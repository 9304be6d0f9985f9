"""`tamiz build` and `tamiz eval` of models that are neither decoders nor encoders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from kit.command_line import ok, refused
from kit.encoders import write_classifier, write_text

LABELS = 32


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    return write_classifier(tmp_path / "classifier", labels=LABELS)


@pytest.fixture
def image(tmp_path: Path) -> tuple[Path, Path]:
    """A dense bundle of a model that reads no text, and a built one."""
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[n, 64] x) => (float[n, 64] y) {
        h = MatMul(x, v) r = Relu(h) y = MatMul(r, w)
    }"""
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(0)
    for name in "vw":
        weight = generator.standard_normal((64, 64), np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, tmp_path / "image.onnx")
    ok("export", tmp_path / "image.onnx", "-o", tmp_path / "dense")
    ok("build", tmp_path / "dense", "-o", tmp_path / "built", "--block-quant=on")
    return tmp_path / "dense", tmp_path / "built"


def test_a_classifier_is_measured_on_texts(classifier: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    summary = ok("build", classifier, "-o", built, "--block-quant=on")
    assert "whole model on 288 texts of at most 128 tokens: mean cosine of outputs" in summary
    assert f"see what is in it: tamiz inspect {built}" in summary
    trial = json.loads((built / "report.json").read_text())["gate"]["trials"][-1]
    assert trial["holds"]
    assert 0.99 < trial["output_cosine"] <= 1
    text = write_text(tmp_path / "text.txt", 2000)
    arguments = ["eval", built, "--against", classifier, "--text", text, "--window", 34]
    found = json.loads(ok(*arguments, "--json"))
    assert found["outputs"] == {"logits": {"cosine": found["output_cosine"]}}
    assert 0.99 < found["output_cosine"] < 1
    assert "logits" in ok(*arguments)
    same = json.loads(ok("eval", classifier, *arguments[2:], "--json"))
    assert same["output_cosine"] == 1


def test_a_classifier_is_put_back_where_it_loses_too_much(classifier: Path, tmp_path: Path) -> None:
    built = tmp_path / "built"
    ok("build", classifier, "-o", built, "--block-quant=on", "--min-cosine=0.9999999999")
    report = json.loads((built / "report.json").read_text())
    assert not report["gate"]["trials"][0]["holds"]
    assert not any(fitted["decision"]["applied"] for site in report["sites"].values()
                   for fitted in site["techniques"])  # fmt: skip


def test_formats_are_not_chosen_within_bytes(classifier: Path, tmp_path: Path) -> None:
    found = refused("build", classifier, "-o", tmp_path / "built", "--max-mb=1")
    assert "--max-mb chooses formats by losses that are predicted on text" in found


def test_inputs_of_samples_and_made_up_ones(image: tuple[Path, Path], tmp_path: Path) -> None:
    dense, built = image
    np.savez(tmp_path / "sample.npz", x=np.ones((3, 64), np.float32))
    for given in ([], ["--sample", tmp_path / "sample.npz"]):
        found = json.loads(ok("eval", built, "--against", dense, *given, "--json"))
        assert 0.99 < found["outputs"]["y"]["cosine"] < 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--text=text.txt"], "--text has no effect on a model that reads no text"),
        (["--windows=3"], "--windows has no effect without --text"),
        (["--last=3"], "--last has no effect on a model that is neither a decoder nor an encoder"),
        (["--metrics"], "is neither a decoder nor an encoder, so its outputs are compared"),
    ],
)
def test_options_without_an_effect(
    image: tuple[Path, Path], given: list[str], message: str
) -> None:
    dense, built = image
    assert message in refused("eval", built, "--against", dense, *given)


def test_another_bundle_is_needed(image: tuple[Path, Path], classifier: Path) -> None:
    dense, built = image
    assert "expected --against" in refused("eval", built)
    assert "does not run" in refused("eval", classifier, "--against", dense, "--domains=all")
    found = refused("eval", built, "--against", classifier)
    assert found == f"{built}: has no output that {classifier} has"
