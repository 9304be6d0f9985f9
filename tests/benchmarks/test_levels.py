"""The comparison of levels of instructions, on a tiny model."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import tamiz_ops
from benchmarks.engines import levels
from tamiz.evaluation import bench

pytestmark = pytest.mark.slow


def test_each_level_is_measured_in_a_process_that_is_forced_to_it(
    tiny_dense: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "ROUNDS", 1)
    monkeypatch.setattr(bench, "TOKENS", 3)
    monkeypatch.setattr(bench, "PAUSE", 0.0)
    monkeypatch.setattr(bench, "read_bandwidth", lambda threads: 1.0)
    monkeypatch.setattr(levels, "BASE", "portable")
    report = tmp_path / "levels.json"
    arguments = [str(tiny_dense), "--context", "16", "--threads", "1", "--json", str(report)]
    result = CliRunner().invoke(levels.main, arguments)
    assert result.exit_code == 0, result.output
    rows = json.loads(report.read_text())["results"]["levels"]
    assert list(rows) == [level for level in tamiz_ops.cpu()["isas"] if level != "scalar"]
    assert rows["portable"]["times portable"]["decode_tok_s"]["16"] == 1
    assert all("llama.cpp" not in row for row in rows.values())


def test_a_level_that_the_machine_has_not_is_refused(tiny_dense: Path) -> None:
    result = CliRunner().invoke(levels.main, [str(tiny_dense), "--level", "z80"])
    assert result.exit_code == 2
    assert "level 'z80': this machine runs" in result.output
