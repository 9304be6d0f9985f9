"""Builds within limits: formats are chosen for each site, limits are used and hold."""

from pathlib import Path

import gguf
import pytest

from tamiz.building.build import Options, build
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.allocation import Goal
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.reporting.report import Report
from tamiz.survey.export import export
from tamiz.testing.tiny_llama import write_tiny_llama

TEXT = "The quick brown fox jumps over the lazy dog. Hello world, hello allocator! " * 200


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle whose weights are Q8_0, and its calibration."""
    from tamiz.plugins import load

    folder = tmp_path_factory.mktemp("reference")
    write_tiny_llama(folder / "tiny.gguf", gguf.GGMLQuantizationType.Q8_0)
    dense = export(str(folder / "tiny.gguf"), folder / "dense", load()).path
    (folder / "text.txt").write_text(TEXT)
    calibrate_bundle(dense, folder / "known", load(), texts=[folder / "text.txt"])
    return folder


def built(reference: Path, out: Path, plugins: Plugins, **fields: object) -> Report:
    options = Options(calibration=reference / "known", goal=Goal(**fields))  # type: ignore[arg-type]
    chosen = choose(plugins.techniques())
    return build(reference / "dense", out, chosen, plugins, options)


def formats(report: Report) -> list[str]:
    return [
        str(site.applied[0].config["format"]) if site.applied else "stored"
        for site in report.sites.values()
    ]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_a_limit_of_size_is_used(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    most = 70_000  # of 85,096
    report = built(reference, tmp_path / "out", plugins, max_bytes=most, prefer="quality")
    assert 0.97 * most <= report.totals.bytes_after <= most
    assert report.gate.trials[0].bytes == report.totals.bytes_after
    assert len(set(formats(report))) > 1


def test_a_limit_of_kl_is_used(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    loose = built(reference, tmp_path / "loose", plugins, max_kl=1.0, prefer="size")
    most = loose.gate.result.kl_mean / 3
    report = built(reference, tmp_path / "out", plugins, max_kl=most, prefer="size")
    assert 0.5 * most <= report.gate.result.kl_mean <= most
    assert report.totals.bytes_after > loose.totals.bytes_after
    assert report.gate.result.kl_error is not None


def test_a_limit_of_dppl_is_used(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    # Text that the model wrote: there, what is lost shows in the perplexity.
    def own(name: str, most: float) -> Report:
        options = Options(goal=Goal(max_dppl=most, prefer="size"))
        chosen = choose(plugins.techniques())
        return build(reference / "dense", tmp_path / name, chosen, plugins, options)

    loose = own("loose", 10.0)
    most = loose.gate.result.dppl / 3
    report = own("out", most)
    assert 0.5 * most <= report.gate.result.dppl <= most
    assert report.totals.bytes_after > loose.totals.bytes_after
    assert report.gate.result.dppl_error is not None
    assert all(trial.predicted >= 0 for trial in report.gate.trials)


def test_equal_builds_have_equal_bytes(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    for name in ("one", "two"):
        built(reference, tmp_path / name, plugins, max_kl=1e-3)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_report_repeats_the_choice(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    built(reference, tmp_path / "one", plugins, max_kl=1e-3)
    options = Options(calibration=reference / "known", report=tmp_path / "one" / "report.json")
    build(reference / "dense", tmp_path / "two", [], plugins, options)
    data = "model.onnx.data"
    assert (tmp_path / "one" / data).read_bytes() == (tmp_path / "two" / data).read_bytes()


def test_an_impossible_size_is_refused(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    with pytest.raises(TamizError, match="no choice meets the limits: the smallest model has 0"):
        built(reference, tmp_path / "out", plugins, max_bytes=1000, prefer="quality")
    assert not (tmp_path / "out").exists()


def test_the_bundle_runs(reference: Path, plugins: Plugins, tmp_path: Path) -> None:
    built(reference, tmp_path / "out", plugins, max_kl=1e-2)
    bundle = Bundle.open(tmp_path / "out")
    assert bundle.manifest.unsafe == {}
