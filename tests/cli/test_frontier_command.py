"""The command frontier: points in order, some measured, a plot."""

import json
import shutil
from pathlib import Path

import gguf
import pytest

from kit.command_line import ok, refused
from tamiz.files.bundle import Bundle
from tamiz.testing import write_tiny_llama

pytestmark = pytest.mark.slow


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


@pytest.mark.parametrize("suffix", [".svg", ".PNG"])
def test_a_second_run_replaces_the_files_with_equal_bytes(
    reference: Path, tmp_path: Path, suffix: str
) -> None:
    pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    out, plot = tmp_path / "out.json", tmp_path / f"out{suffix}"
    flags = ("--points=2", "--measure=1", "--calibration", reference / "known")
    written = []
    for _ in range(2):
        ok("frontier", reference / "ref", "-o", out, "--plot", plot, *flags)
        written.append((out.read_bytes(), plot.read_bytes()))
        assert len(list(tmp_path.iterdir())) == 2
    assert written[0] == written[1]
    assert b"<dc:date>" not in plot.read_bytes()


@pytest.fixture
def room(reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a dense bundle, a calibration and a note; nothing can be built."""

    def build(*_: object, **_options: object) -> None:
        pytest.fail("builds")

    monkeypatch.setattr("tamiz.building.build.build", build)
    monkeypatch.chdir(tmp_path)
    shutil.copytree(reference / "ref", "dense")
    shutil.copyfile(reference / "known", "calib")
    Path("note.txt").write_text("mine")
    Path("note.svg").write_text("<svg>mine</svg>")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("-o calib --calibration calib", "calib: is calib, which the command uses"),
        ("-o note.txt --text note.txt", "note.txt: is note.txt, which the command uses"),
        ("-o x.json --calibration calib --domains prose", "--domains has no effect with --cal"),
        ("-o dense/config.json", "lies inside of dense, which the command uses"),
        ("-o kept/x.json --keep kept", "lies inside of kept, which the command uses"),
        ("-o note.txt", "note.txt: exists and is not a result of 'tamiz frontier'"),
        ("-o gone/x.json", "gone/x.json: cannot be written: No such file or directory"),
        ("-o x.json --plot note.svg", "note.svg: exists and is not a plot of 'tamiz frontier'"),
        ("-o x.svg --plot x.svg", "x.svg: is x.svg, which the command uses"),
        ("-o x.json --plot x.xyz", "x.xyz: found the suffix '.xyz', expected .svg or .png"),
        ("-o x.json --plot plot", "plot: found the suffix '', expected .svg or .png"),
    ],
)
def test_what_would_be_lost_is_refused_before_a_build(room: Path, line: str, reason: str) -> None:
    if "--plot" in line:
        pytest.importorskip("matplotlib", reason="the extra plot is not installed")
    before = {path: path.read_bytes() for path in room.rglob("*") if path.is_file()}
    assert reason in refused("frontier", "dense", *line.split())
    assert {path: path.read_bytes() for path in room.rglob("*") if path.is_file()} == before


def test_a_result_is_not_written_into_a_bundle(room: Path) -> None:
    other = shutil.copytree("dense", "other")
    (Path(other) / "report.json").touch()
    told = refused("frontier", "dense", "-o", "other/report.json")
    assert f"lies inside of the bundle {room / 'other'}" in told


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


def test_points_are_measured_on_a_text(reference: Path, tmp_path: Path) -> None:
    """No calibration and no shipped domain: the text alone is read."""
    text = ("--text", reference / "text", "--domains=none", "--points=2", "--measure=1")
    ok("frontier", reference / "ref", "-o", tmp_path / "text.json", *text)
    known = ("--calibration", reference / "known", "--points=2", "--measure=1")
    ok("frontier", reference / "ref", "-o", tmp_path / "known.json", *known)
    found = [(tmp_path / f"{name}.json").read_text() for name in ("text", "known")]
    assert found[0] == found[1]


def test_an_unknown_name_is_refused(reference: Path, tmp_path: Path) -> None:
    told = refused("frontier", reference / "ref", "-o", tmp_path / "x.json", "--allow=kwto")
    assert "--allow=kwto: expected one of: bits, " in told
