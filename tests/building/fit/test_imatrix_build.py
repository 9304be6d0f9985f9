"""Builds whose mean squared inputs come from an imatrix of llama.cpp."""

from pathlib import Path

import numpy as np
import pytest

from kit.command_line import ok, refused
from kit.imatrix_files import NAMES, known_means, write_gguf, write_legacy
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.calibration.imatrix import read_imatrix, weighed_by
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.plugins import Plugins
from tamiz.reporting.reader import read_report
from tamiz.survey.survey import Survey, survey
from tamiz.testing.tiny_llama import FFN, HIDDEN, LAYERS

MEANS = known_means(LAYERS, HIDDEN, FFN)
SEARCH = ("--block-quant-format=q4_0", "--block-quant-fit=search", "--max-dppl=off")


@pytest.fixture(scope="module")
def surveyed(dense_dir: Path) -> Survey:
    from tamiz.plugins import load

    return survey(Bundle.open(dense_dir), load())


@pytest.mark.parametrize("write", [write_gguf, write_legacy])
def test_statistics_are_the_file_s(
    write, surveyed: Survey, plugins: Plugins, tmp_path: Path
) -> None:
    imatrix = read_imatrix(write(tmp_path / "i", MEANS), surveyed, plugins)
    known = weighed_by(None, imatrix, surveyed)
    for layer in range(LAYERS):
        for tensor, name in NAMES.items():
            statistics = known.statistics(f"layers.{layer}.{tensor}")
            assert statistics is not None
            mean = MEANS[f"blk.{layer}.{name}.weight"]
            np.testing.assert_allclose(statistics.imatrix, mean, rtol=1e-6)
            assert statistics.samples.shape == (0, len(mean))
    assert known.statistics("output") is None


def test_a_calibration_keeps_its_samples(
    surveyed: Survey, plugins: Plugins, dense_dir: Path, tmp_path: Path
) -> None:
    text = tmp_path / "text"
    text.write_text("hello world, this is a sieve. " * 60)
    measured = calibrate_bundle(dense_dir, tmp_path / "c", plugins, texts=[text], windows=1)
    imatrix = read_imatrix(write_gguf(tmp_path / "i", MEANS), surveyed, plugins)
    known = weighed_by(measured, imatrix, surveyed)
    one, other = known.statistics("layers.1.ffn_down"), measured.statistics("layers.1.ffn_down")
    np.testing.assert_allclose(one.imatrix, MEANS["blk.1.ffn_down.weight"], rtol=1e-6)
    assert np.array_equal(one.samples, other.samples)
    head = known.statistics("output"), measured.statistics("output")
    assert np.array_equal(head[0].imatrix, head[1].imatrix)
    assert known.digest != measured.digest


def test_a_build_weighs_by_it_and_is_repeated(dense_dir: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "i.gguf", MEANS)
    same = write_legacy(tmp_path / "i.dat", MEANS)
    built = {}
    for name, given in (("none", ()), ("gguf", ("--imatrix", file)), ("dat", ("--imatrix", same))):
        built[name] = tmp_path / name
        ok("build", dense_dir, "-o", built[name], *SEARCH, *given)
    weights = {name: (path / "model.onnx.data").read_bytes() for name, path in built.items()}
    assert weights["none"] != weights["gguf"]
    assert weights["gguf"] == weights["dat"]
    report = built["gguf"] / "report.json"
    again = ("build", dense_dir, "--from-report", report)
    ok(*again, "--imatrix", file, "-o", tmp_path / "again")
    assert (tmp_path / "again" / "model.onnx.data").read_bytes() == weights["gguf"]
    error = refused(*again, "-o", tmp_path / "other")
    assert "used another calibration file or imatrix" in error


def test_the_weighted_cosine_is_judged_by_it(dense_dir: Path, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "i.gguf", MEANS)
    ok("build", dense_dir, "-o", tmp_path / "b", *SEARCH, "--imatrix", file)
    site = read_report(tmp_path / "b" / "report.json").sites["layers.0.ffn_down"]
    metrics = site.techniques[0].metrics
    assert "cos_mean_x_w" in metrics
    assert "cos_mean_x" not in metrics


def test_a_file_of_another_model_is_refused(
    surveyed: Survey, plugins: Plugins, dense_dir: Path, tmp_path: Path
) -> None:
    for means, reason in (
        (known_means(LAYERS, HIDDEN, FFN + 32), f"ffn_down: found {FFN + 32} inputs, expected the"),
        (known_means(LAYERS + 1, HIDDEN, FFN), f"found layers.2.attn_q, expected the {LAYERS} lay"),
        ({"blk.0.other.weight": np.ones(4, np.float32)}, "found no site of the model, expected"),
    ):
        path = write_gguf(tmp_path / "i", means)
        with pytest.raises(TamizError, match=reason):
            read_imatrix(path, surveyed, plugins)
    error = refused("build", dense_dir, "-o", tmp_path / "b", "--imatrix", tmp_path / "i")
    assert error.endswith("is the imatrix of another model?")
    assert not (tmp_path / "b").exists()
    with pytest.raises(TamizError, match="/dev/zero: is no regular file"):
        read_imatrix(Path("/dev/zero"), surveyed, plugins)
