"""The budget of other models than decoders and encoders: cosines of their outputs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from kit.command_line import ok, refused
from tamiz.building.build import Options, build
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.reporting.gate import NOTHING_LOSSY
from tamiz.reporting.report import Report
from tamiz.survey.export import export

HEAD = '<ir_version: 8, opset_import: ["" : 18]> g '
#: An image as a model reads it: two products, and two outputs.
IMAGE = f"""{HEAD} (float[n, 3, h, w] image) => (float[n, 3, h, 40] y, float[n, 3, h, 40] z) {{
    rows = Slice(image, zero, eight, last) h = MatMul(rows, v) r = Relu(h)
    y = MatMul(r, w) z = Neg(y)
}}"""
#: Takes 7 rows; no input is made up that has them.
SEVEN = f"""{HEAD} (float[n, 64] x) => (float[7, 64] y) {{
    r = Reshape(x, shape) y = MatMul(r, w)
}}"""


def weights(*sizes: tuple[int, int]) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [generator.standard_normal(size, np.float32) for size in sizes]


def image(folder: Path) -> Path:
    v, w = weights((8, 64), (64, 40))
    places = {"zero": np.array([0]), "eight": np.array([8]), "last": np.array([3])}
    return write(folder, IMAGE, v=v, w=w, **places)


def seven(folder: Path) -> Path:
    (w,) = weights((64, 64))
    return write(folder, SEVEN, w=w, shape=np.array([7, 64]))


def write(folder: Path, text: str, **constants: Any) -> Path:
    model = onnx.parser.parse_model(text)
    for name, array in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def built(source: Path, plugins: Plugins, **options: Any) -> Report:
    dense = source.parent / "dense"
    export(str(source), dense, plugins)
    choices = choose(plugins.techniques(), {})
    settings = replace(Options(), **options)
    return build(dense, source.parent / "built", choices, plugins, settings)


def test_a_lossy_build_is_measured_on_made_up_inputs(tmp_path: Path, plugins: Plugins) -> None:
    gate = built(image(tmp_path), plugins).gate
    assert (gate.text, gate.windows, gate.window_tokens) == ("made-up inputs", 8, None)
    assert gate.result is not None
    assert 0.99 < gate.result.output_cosine <= 1
    assert 0 < gate.result.output_cosine_error < 0.01
    assert gate.result.cosine is None
    assert {name: each.windows for name, each in gate.result.domains.items()} == {"y": 8, "z": 8}
    cosines = [each.cosine for each in gate.result.domains.values()]
    assert min(cosines) == gate.result.output_cosine


def test_what_loses_too_much_is_put_back(tmp_path: Path, plugins: Plugins) -> None:
    report = built(image(tmp_path), plugins, min_cosine=1 - 1e-9)
    assert not report.lossy
    assert report.gate.result is None
    assert not report.gate.trials[0].holds


def test_samples_are_measured_instead(tmp_path: Path, plugins: Plugins) -> None:
    generator, folder = np.random.default_rng(1), tmp_path / "samples"
    folder.mkdir()
    for number in range(3):
        x = generator.random((7, 64), np.float32)
        np.savez(folder / f"{number}.npz", x=x)
    out = ok("build", seven(tmp_path), "-o", tmp_path / "built", f"--sample={folder}")
    assert "whole model on 3 inputs of --sample: mean cosine of outputs 1.0000" in out
    assert "\nruns\n" in out
    assert "eval" not in out


def test_several_samples_may_be_given(tmp_path: Path, plugins: Plugins) -> None:
    paths = [tmp_path / f"{name}.npz" for name in "ab"]
    for path in paths:
        np.savez(path, x=np.ones((7, 64), np.float32))
    gate = built(seven(tmp_path), plugins, samples=tuple(paths)).gate
    assert (gate.text, gate.windows) == ("samples", 2)


def test_an_empty_folder_of_samples_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    found = refused("build", tmp_path, "-o", tmp_path / "out", f"--sample={tmp_path / 'none'}")
    assert "none: found no .npz file, expected one for each input" in found


def test_nothing_lossy_is_applied_where_nothing_can_be_measured(
    tmp_path: Path, plugins: Plugins
) -> None:
    report = built(seven(tmp_path), plugins)
    assert not report.lossy
    reason = f"{NOTHING_LOSSY}: no valid input is known; give some with --sample"
    assert report.gate.skipped == reason


def test_without_a_budget_it_is_applied_unmeasured(tmp_path: Path, plugins: Plugins) -> None:
    assert built(seven(tmp_path), plugins, min_cosine=None).lossy


def test_nothing_lossy_is_applied_where_outputs_are_drawn(tmp_path: Path, plugins: Plugins) -> None:
    text = f"""{HEAD} (float[n, 64] x) => (float[n, 64] y) {{
        r = RandomNormalLike(x) s = Add(x, r) y = MatMul(s, w)
    }}"""
    (w,) = weights((64, 64))
    report = built(write(tmp_path, text, w=w), plugins)
    assert not report.lossy
    assert report.gate.skipped.endswith("the dense model draws its outputs at random")


def test_an_encoder_without_a_tokenizer_is_measured_on_made_up_tokens(
    tmp_path: Path, plugins: Plugins
) -> None:
    text = f"""{HEAD} (int64[n, t] input_ids) => (float[n, t, 64] y) {{
        r = Gather(e, input_ids) y = MatMul(r, w)
    }}"""
    e, w = weights((32, 64), (64, 64))
    gate = built(write(tmp_path, text, e=e, w=w), plugins).gate
    assert (gate.text, gate.windows) == ("made-up inputs", 8)
    assert gate.result is not None
    assert 0.99 < gate.result.output_cosine <= 1


def with_states(folder: Path, past: str, more: str = "") -> Path:
    """A model of tokens with states of a shape."""
    text = f"""{HEAD} (int64[n, t] input_ids, float[{past}] "past_key_values.0.key"{more})
        => (float[n, t, 64] logits, float[{past}] "present.0.key") {{
        r = Gather(e, input_ids) logits = MatMul(r, w)
        "present.0.key" = Identity("past_key_values.0.key")
    }}"""
    e, w = weights((32, 64), (64, 64))
    return write(folder, text, e=e, w=w)


def test_nothing_lossy_is_applied_to_a_decoder_that_does_not_run_and_no_folder_is_named(
    tmp_path: Path, plugins: Plugins
) -> None:
    """Two dimensions of its states grow."""
    mask = ", int64[n, all] attention_mask"
    report = built(with_states(tmp_path, "n, 1, p, size", mask), plugins)
    assert not report.lossy
    assert report.gate.skipped is not None
    assert report.gate.skipped.startswith(f"{NOTHING_LOSSY}: model.onnx: past_key_values.0.key is")
    assert str(tmp_path) not in report.gate.skipped


def test_states_without_a_mask_are_inputs_like_others(tmp_path: Path, plugins: Plugins) -> None:
    gate = built(with_states(tmp_path, "n, 1, p, 64"), plugins).gate
    assert gate.result is not None
    assert gate.result.output_cosine is not None
    assert gate.result.output_cosine > 0.99


def test_min_cosine_alone_is_the_budget_and_chooses_no_formats(tmp_path: Path) -> None:
    out = ok("build", image(tmp_path), "-o", tmp_path / "built", "--min-cosine=0.5")
    assert "whole model on 8 made-up inputs: mean cosine of outputs 1.0000" in out
    assert "at least 0.5 accepted" in out
    assert "real inputs may lose more or less: give some with --sample" in out


@pytest.mark.parametrize("limit", ["--max-mb=1", "--max-kl=0.1", "--max-dppl=0.1"])
def test_limits_of_models_that_read_text_are_refused(tmp_path: Path, limit: str) -> None:
    found = refused("build", image(tmp_path), "-o", tmp_path / "built", limit)
    assert (
        f"{limit.partition('=')[0]} chooses formats by losses that are predicted on text" in found
    )
    assert "use --min-cosine" in found


@pytest.mark.parametrize("choice", ["--prefer=size", "--allow=kwta", "--force=kwta"])
def test_choices_of_builds_that_choose_formats_are_refused(tmp_path: Path, choice: str) -> None:
    given = ("--min-cosine=0.5", choice)
    found = refused("build", image(tmp_path), "-o", tmp_path / "built", *given)
    assert f"{choice} needs a build that chooses formats" in found
