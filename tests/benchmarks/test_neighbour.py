"""A benchmark beside a process that spins."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks.engines import neighbour
from kit.encoders import write_encoder


def test_models_are_measured_with_and_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbour, "_PAUSE", 0.0)
    begun: list[subprocess.Popen[bytes]] = []

    class Spinner(subprocess.Popen[bytes]):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **named)
            begun.append(self)

    monkeypatch.setattr(neighbour.subprocess, "Popen", Spinner)
    write_encoder(tmp_path / "a")
    output = tmp_path / "out.json"
    given = [str(tmp_path / "a"), "--rounds", "3", "--json", str(output)]
    monkeypatch.setattr(
        neighbour, "seconds", lambda model, ids: 1.0 if begun else pytest.fail("no neighbour")
    )
    done = CliRunner().invoke(neighbour.main, given, catch_exceptions=False)
    assert done.exit_code == 0
    row = json.loads(output.read_text())["results"]["a"]
    assert row["slowdown"] == 1
    assert begun[0].returncode is not None
