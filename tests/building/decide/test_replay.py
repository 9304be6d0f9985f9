"""Builds that repeat the decisions of a report: of the same model, with the same statistics."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.command_line import ok, refused
from kit.encoders import write_encoder
from kit.folders import TIMED, contents

pytestmark = pytest.mark.slow

#: Files that hold what a build did, not the model.


def report(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "report.json").read_text())
    return found


@pytest.fixture(scope="module")
def chosen(dense_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build within limits, on the text that ships with tamiz."""
    out = tmp_path_factory.mktemp("replay") / "chosen"
    ok("build", dense_dir, "-o", out, "--max-dppl=0.05", "--domains=prose,code")
    return out


def test_a_build_on_the_shipped_text_is_repeated(
    chosen: Path, dense_dir: Path, tmp_path: Path
) -> None:
    assert report(chosen)["build"]["domains"] == ["prose", "code"]
    file = chosen / "report.json"
    ok("build", dense_dir, "-o", tmp_path / "one", "--from-report", file)
    ok("build", dense_dir, "-o", tmp_path / "two", "--from-report", tmp_path / "one/report.json")
    assert (
        contents(tmp_path / "one", TIMED)
        == contents(tmp_path / "two", TIMED)
        == contents(chosen, TIMED)
    )


def test_another_calibration_than_the_shipped_text_is_refused(
    chosen: Path, dense_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("hello world, this is a sieve. " * 200)
    ok("calibrate", dense_dir, "--text", tmp_path / "text", "-o", tmp_path / "known")
    given = ("--from-report", chosen / "report.json", "--calibration", tmp_path / "known")
    reason = refused("build", dense_dir, "-o", tmp_path / "out", *given)
    assert reason.endswith("used the text of the default; remove --calibration")
    broken = tmp_path / "report.json"
    choices = {**report(chosen)["build"], "calibration": "0"}
    broken.write_text(json.dumps({**report(chosen), "build": choices}))
    reason = refused("build", dense_dir, "-o", tmp_path / "out", "--from-report", broken)
    assert reason.endswith("used another imatrix, --text or shipped text")


def test_a_report_without_the_later_fields_is_read(tiny_dense: Path, tmp_path: Path) -> None:
    ok("build", tiny_dense, "-o", tmp_path / "new")
    old = report(tmp_path / "new")
    del old["fingerprint"]
    del old["build"]["own_text"]
    del old["build"]["domains"]
    (tmp_path / "old.json").write_text(json.dumps(old))
    ok("build", tiny_dense, "-o", tmp_path / "out", "--from-report", tmp_path / "old.json")
    assert contents(tmp_path / "out", TIMED) == contents(tmp_path / "new", TIMED)


def test_a_model_is_known_by_its_weights_where_its_source_has_no_hash(tmp_path: Path) -> None:
    dense, other = write_encoder(tmp_path / "dense"), write_encoder(tmp_path / "other", noise=0.1)
    ok("build", dense, "-o", tmp_path / "built")
    assert report(tmp_path / "built")["source_sha256"] is None
    again = ("--from-report", tmp_path / "built" / "report.json")
    ok("build", dense, "-o", tmp_path / "again", *again)
    reason = refused("build", other, "-o", tmp_path / "wrong", *again)
    assert "reports a build of another model" in reason
