"""The command frontier: points in order, some measured, a plot."""

import json
from pathlib import Path

import gguf
import pytest

from kit.command_line import ok, refused
from tamiz.files.bundle import Bundle
from tamiz.testing import write_tiny_llama


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    write_tiny_llama(folder / "tiny.gguf", gguf.GGMLQuantizationType.Q8_0)
    (folder / "text").write_text("hello " * 4000)
    ok("export", folder / "tiny.gguf", "-o", folder / "ref")
    ok("calibrate", folder / "ref", "--text", folder / "text", "-o", folder / "known")
    return folder


def test_points_are_predicted_and_some_measured(reference: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    known = ("--calibration", reference / "known")
    flags = ("-o", out, "--plot", plot, "--points=8", "--measure=2", *known)
    told = ok("frontier", reference / "ref", *flags)
    found = json.loads(out.read_text())
    points = found["points"]
    sizes = [point["mb"] for point in points]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] < found["mb"]
    assert [p["kl_mean"] is not None for p in (points[0], points[-1])] == [True, True]
    assert sum(point["kl_mean"] is not None for point in points) == 2
    assert all(point["predicted_dppl"] is not None for point in points)
    assert "measured" in told
    assert "<svg" in plot.read_text("utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.svg"]


def test_measured_points_can_be_kept(reference: Path, tmp_path: Path) -> None:
    flags = ("-o", tmp_path / "out.json", "--points=8", "--measure=2", "--keep", tmp_path / "kept")
    ok("frontier", reference / "ref", *flags, "--calibration", reference / "known")
    points = json.loads((tmp_path / "out.json").read_text())["points"]
    measured = [point["mb"] for point in points if point["kl_mean"] is not None]
    kept = {path.name: path for path in (tmp_path / "kept").iterdir()}
    assert sorted(kept) == [f"{n:02}-{mb:.1f}MB" for n, mb in enumerate(measured, 1)]
    assert all(Bundle.open(path).manifest.kind == "built" for path in kept.values())
    told = refused("frontier", reference / "ref", *flags)
    assert f"--keep: {tmp_path / 'kept'} exists, expected a new folder" in told


def test_an_unknown_name_is_refused(reference: Path, tmp_path: Path) -> None:
    told = refused("frontier", reference / "ref", "-o", tmp_path / "x.json", "--allow=kwto")
    assert "--allow=kwto: expected one of: bits, " in told
