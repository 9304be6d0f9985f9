"""What a search calibrates for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.command_line import ok
from kit.composed import needs
from tamiz.reporting.reader import read_report


def policy(path: Path, **techniques: Any) -> Path:
    path.write_text(json.dumps({"version": 1, "defaults": {"techniques": techniques}}))
    return path


@pytest.mark.parametrize("acts", [True, False])
def test_a_technique_of_a_policy_is_calibrated_where_it_acts(
    tiny_dense: Path, tmp_path: Path, acts: bool
) -> None:
    needs("kwta")
    given = ["--policy", policy(tmp_path / "policy", kwta={"enable": acts, "k": 0.5})]
    flags = [] if acts else ["--kwta"]
    ok("build", tiny_dense, "-o", tmp_path / "out", *given, *flags, "--max-dppl=off")
    report = read_report(tmp_path / "out" / "report.json")
    assert (report.build.calibration is not None) == acts
    down = report.sites["layers.0.ffn_down"].decision
    assert ("kwta" in down.applied) == acts
    assert down.refused == []
