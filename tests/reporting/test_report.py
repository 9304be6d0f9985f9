"""The strict reader of reports: what is wrong is one sentence that names file and field."""

import copy
import json
import shutil
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from kit.command_line import ok, tamiz

SITE = "layers.0.ffn_up"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, dense_dir: Path) -> Path:
    out = tmp_path_factory.mktemp("report") / "built"
    ok("build", dense_dir, "-o", out, "--max-dppl=off")
    return out


def edited(bundle: Path, place: str, value: Any) -> None:
    """Writes the bundle's report with another value at a place, and the manifest's size of it."""
    report = json.loads((bundle / "report.json").read_text())
    *keys, last = (SITE if key == "SITE" else key for key in place.split("/"))
    inside = reduce(lambda found, key: found[int(key) if key.isdigit() else key], keys, report)
    if value is None:
        del inside[last]
    else:
        inside[last] = value
    text = json.dumps(report)
    (bundle / "report.json").write_text(text)
    manifest = json.loads((bundle / "tamiz.json").read_text())
    manifest["files"]["report.json"]["size"] = len(text)
    (bundle / "tamiz.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ("sites/SITE/kind", "wheel", f"sites.{SITE}.kind: expected 'linear', "),
        ("sites/SITE/kind", 3, f"sites.{SITE}.kind: expected"),
        ("sites/SITE/techniques/0/config", [1], "techniques.0.config: expected an object"),
        (
            "sites/SITE/techniques/0/metrics",
            {"rel_l2": "x"},
            "metrics.rel_l2: expected a valid num",
        ),
        ("sites/SITE/decision/refused", 7, "decision.refused: expected a valid array, found 7"),
        ("sites/SITE/decision/applied", {"a": 1}, "expected a valid array, found an object"),
        ("sites/SITE/bytes_after", "many", f"sites.{SITE}.bytes_after: expected a valid integer"),
        ("sites/SITE/bytes_after", -1, "bytes_after: expected greater than or equal to 0"),
        ("sites/SITE/layer", 0.5, f"sites.{SITE}.layer: expected a valid integer, found 0.5"),
        ("sites/SITE/shape", [1], f"sites.{SITE}.shape"),
        ("sites/SITE/decision", None, f"sites.{SITE}: lacks the key 'decision'"),
        ("sites/SITE/colour", "red", f"sites.{SITE}.colour: unknown key"),
        ("sites/SITE/resolved/policy_from", {"a": 1}, "resolved.policy_from.a: expected a valid"),
        ("gate/built", 5, "gate: expected an index below the number of trials, 0"),
        ("gate/trials", "none", "gate.trials: expected a valid array, found 'none'"),
        ("conflicts", {}, "conflicts: expected a valid array, found an object"),
        ("source", "\ud800", "not valid JSON: "),
        ("format", 1, "is a report of format 1, this tamiz"),
        ("format", None, "build the bundle again with 'tamiz build'"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "explain site", "diff", "build"])
def test_a_report_that_was_edited(
    built: Path, tiny_dense: Path, tmp_path: Path, command: str, place: str, value: Any, reason: str
) -> None:
    bundle = Path(shutil.copytree(built, tmp_path / "built"))
    edited(bundle, place, copy.deepcopy(value))
    arguments: dict[str, list[str | Path]] = {
        "explain": [bundle],
        "explain site": [bundle, SITE],
        "diff": [built, bundle],
        "build": [tiny_dense, "-o", tmp_path / "again", "--from-report", bundle / "report.json"],
    }
    result = tamiz(command.split()[0], *arguments[command])
    assert result.exit_code == 2, result.output
    (line,) = result.stderr.strip().splitlines()
    assert str(bundle / "report.json") in line
    assert reason in line


def test_a_configuration_that_its_technique_refuses(
    built: Path, tiny_dense: Path, tmp_path: Path
) -> None:
    report = json.loads((built / "report.json").read_text())
    report["sites"][SITE]["techniques"][0]["config"]["bits"] = 3
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    result = tamiz("build", tiny_dense, "-o", tmp_path / "out", "--from-report", path)
    assert result.exit_code == 2
    assert f"{path}: sites.{SITE}.techniques.block-quant.config: --block-quant-bits=3" in (
        result.stderr
    )
