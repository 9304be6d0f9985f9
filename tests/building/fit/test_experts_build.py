"""Builds that round the experts of a mixture, weighed by a calibration or an imatrix."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf
from kit.command_line import ok, refused
from kit.imatrix_files import write_gguf, write_legacy
from kit.mixtures import MIXTURES
from tamiz.calibration import file as files
from tamiz.calibration.imatrix import read_imatrix, weighed_by
from tamiz.files.bundle import Bundle
from tamiz.plugins import Plugins
from tamiz.reporting.reader import read_report
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz.survey.survey import survey

MODEL = tiny_gguf.random_model(**MIXTURES["qwen3moe"])
TENSORS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
WIDTHS = (MODEL.hidden, MODEL.hidden, MODEL.expert_ffn)
TEXT = "the house of numbers has one door, and two of the windows are open. " * 60


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tamiz.plugins import load

    folder = tmp_path_factory.mktemp("mixture")
    tiny_gguf.write(folder / "tiny.gguf", MODEL, Type.Q8_0)
    export(str(folder / "tiny.gguf"), folder / "dense", load())
    (folder / "text.txt").write_text(TEXT, "utf-8")
    return folder / "dense"


@pytest.fixture(scope="module")
def calibration(dense: Path) -> Path:
    target = dense.parent / "calibration"
    said = ok("calibrate", dense, "-o", target, "--text", dense.parent / "text.txt", "--windows=2")
    assert f"of {MODEL.layers * MODEL.experts} were never taken" in said
    return target


def test_a_calibration_counts_the_experts(dense: Path, calibration: Path) -> None:
    found = files.load(calibration, Bundle.open(dense))
    tokens = found.count
    for layer in range(MODEL.layers):
        for tensor, width in zip(TENSORS, WIDTHS, strict=True):
            statistics = found.statistics(f"layers.{layer}.{tensor}")
            assert statistics is not None
            assert statistics.experts is not None
            assert statistics.experts.counts.sum() == tokens * MODEL.top
            assert statistics.experts.imatrix.shape == (MODEL.experts, width)
            assert statistics.imatrix.shape == (width,)
            counts = statistics.experts.counts / statistics.experts.counts.sum()
            mean = counts @ statistics.experts.imatrix.astype(np.float64)
            np.testing.assert_allclose(statistics.imatrix, mean, rtol=1e-5)


def test_two_files_are_joined(dense: Path, calibration: Path) -> None:
    other, both = dense.parent / "other", dense.parent / "both"
    (dense.parent / "other.txt").write_text(TEXT[::-1], "utf-8")
    given = ("--text", dense.parent / "other.txt", "--windows=1")
    ok("calibrate", dense, "-o", other, *given)
    ok("calibrate", dense, "-o", both, "--merge", calibration, "--merge", other)
    one, two, sum_of = (files.load(p, Bundle.open(dense)) for p in (calibration, other, both))
    for name, found in sum_of.experts.items():
        parts = one.experts[name], two.experts[name]
        np.testing.assert_array_equal(found.counts, sum(part.counts for part in parts))
        np.testing.assert_allclose(found.sums, sum(part.sums for part in parts), rtol=1e-12)


def test_a_requested_format_rounds_experts(dense: Path, calibration: Path) -> None:
    built = dense.parent / "q4"
    given = ("--block-quant-format=q4_0", "--max-dppl=off", "--calibration", calibration)
    ok("build", dense, "-o", built, *given)
    sites = read_report(built / "report.json").sites
    for layer in range(MODEL.layers):
        for tensor in TENSORS:
            site = sites[f"layers.{layer}.{tensor}"]
            assert site.kind == "experts"
            assert site.bytes_after * 34 == site.bytes_before * 18
    ids = np.arange(3, 40)[None]
    logits = [Model.load(path, threads=1).logits(ids) for path in (dense, built)]
    correlation = float(np.corrcoef(logits[0].ravel(), logits[1].ravel())[0, 1])
    assert 0.9 < correlation < 1 - 1e-6


def test_without_a_request_they_stay(dense: Path) -> None:
    ok("build", dense, "-o", dense.parent / "kept", "--max-dppl=off")
    sites = read_report(dense.parent / "kept" / "report.json").sites.values()
    assert all(site.bytes_after == site.bytes_before for site in sites if site.kind == "experts")


def means() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    return {
        f"blk.{layer}.{tensor}.weight": rng.uniform(0.1, 4, (MODEL.experts, width)).astype("f4")
        for layer in range(MODEL.layers)
        for tensor, width in zip(TENSORS, WIDTHS, strict=True)
    }


@pytest.mark.parametrize("write", [write_gguf, write_legacy])
def test_an_imatrix_has_the_means_of_each(
    write, dense: Path, plugins: Plugins, tmp_path: Path
) -> None:
    surveyed = survey(Bundle.open(dense), plugins)
    imatrix = read_imatrix(write(tmp_path / "i", means()), surveyed, plugins)
    known = weighed_by(None, imatrix, surveyed)
    for name, mean in means().items():
        _, layer, tensor, _ = name.split(".")
        statistics = known.statistics(f"layers.{layer}.{tensor}")
        assert statistics is not None
        assert statistics.experts is not None
        np.testing.assert_allclose(statistics.experts.imatrix, mean, rtol=1e-6)
        np.testing.assert_allclose(statistics.imatrix, mean.mean(axis=0), rtol=1e-6)
    given = ("--block-quant-format=q4_0", "--block-quant-fit=search", "--max-dppl=off")
    ok("build", dense, "-o", tmp_path / "built", "--imatrix", tmp_path / "i", *given)


def test_an_imatrix_of_another_mixture_is_refused(dense: Path, tmp_path: Path) -> None:
    wrong = means() | {"blk.1.ffn_up_exps.weight": np.ones((MODEL.experts + 1, MODEL.hidden), "f4")}
    write_gguf(tmp_path / "i", wrong)
    said = refused("build", dense, "-o", tmp_path / "built", "--imatrix", tmp_path / "i")
    shape = f"{MODEL.experts} x {MODEL.hidden}"
    assert "layers.1.ffn_up_exps: found" in said
    assert f"expected the {shape} of" in said
