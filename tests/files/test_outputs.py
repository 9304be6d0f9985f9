"""No output replaces an input, a part of a bundle, or a file of another kind."""

import os
import shutil
from pathlib import Path

import pytest

from kit.command_line import ok, tamiz
from tamiz.files.bundle import Bundle


@pytest.fixture
def folder(tiny_dense: Path) -> Path:
    """A folder with a dense bundle, a built one, a text, a policy and a note."""
    folder = tiny_dense.parent
    (folder / "text").write_text("hello world, the sieve keeps what is large. " * 100)
    (folder / "policy").write_text('{"version": 1}')
    (folder / "note").write_text("mine")
    os.link(folder / "text", folder / "same-text")
    ok("build", tiny_dense, "-o", folder / "built", "--report-json", folder / "report")
    return folder


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("calibrate tiny-dense -o tiny-dense/model.onnx", "lies inside of tiny-dense, which"),
        ("calibrate tiny-dense -o tiny-dense/new", "lies inside of tiny-dense, which"),
        ("calibrate tiny-dense --text text -o text", "text: is text, which the command uses"),
        ("calibrate tiny-dense --text text -o same-text", "same-text: is text, which"),
        ("calibrate tiny-dense --text text -o built/tamiz.json", "inside of the bundle"),
        ("calibrate tiny-dense --text text -o built/new", "inside of the bundle"),
        ("calibrate tiny-dense --text text -o note", "note: exists and is not a calibration"),
        ("calibrate tiny-dense --text text -o report", "report: exists and is not a calibration"),
        (
            "build tiny-dense -o out --policy policy --report-json policy",
            "policy: is policy",
        ),
        (
            "build tiny-dense -o out --report-json tiny-dense/tamiz.json",
            "lies inside of tiny-dense",
        ),
        ("build tiny-dense -o out --report-json out/tamiz.json", "lies inside of out, which"),
        (
            "build tiny-dense -o built --report-json built/report.json",
            "inside of built, ",
        ),
        ("build tiny-dense -o out --from-report report --report-json report", "report: is report"),
        ("build tiny-dense -o out --report-json built/report.json", "inside of the bundle"),
        ("build tiny-dense -o out --report-json note", "note: exists and is not a report"),
    ],
)
def test_what_would_be_lost_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    monkeypatch.chdir(folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    result = tamiz(*line.split())
    assert result.exit_code == 2, result.output
    assert reason in result.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_an_older_file_of_the_same_kind_is_replaced(folder: Path) -> None:
    report, calibration = folder / "report", folder / "calibration"
    for _ in range(2):
        ok("calibrate", folder / "tiny-dense", "--text", folder / "text", "-o", calibration)
    before = report.read_bytes()
    (folder / "link").symlink_to(report)
    arguments = ["--block-quant-bits=8", "--report-json", folder / "link"]
    ok("build", folder / "tiny-dense", "-o", folder / "out", *arguments)
    assert (folder / "link").is_symlink()
    assert report.read_bytes() != before
    Bundle.open(shutil.move(folder / "out", folder / "moved"))


def test_an_empty_file_may_be_written(folder: Path) -> None:
    (folder / "empty").touch()
    ok("build", folder / "tiny-dense", "-o", folder / "out", "--report-json", folder / "empty")
    assert (folder / "empty").stat().st_size > 0
