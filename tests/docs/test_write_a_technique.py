"""The technique of the tutorial works as it is written on the page."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tamiz import api

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "write-a-technique.md"


def blocks(language: str) -> list[str]:
    """The code blocks of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def run(folder: Path, *command: str | Path) -> str:
    """The standard output of a Python module, run where the plugin in a folder is installed."""
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        env=os.environ | {"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An installed distribution, with the entry point of the page and no code yet."""
    entry_point = blocks("toml")[0].partition("[project.entry-points.tamiz]\n")[2]
    info = tmp_path / "site" / "tamiz_hello-0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tamiz-hello\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[tamiz]\n" + entry_point.replace('"', ""))
    return info.parent


def test_hello_is_short_and_builds(folder: Path, tiny_dense: Path, tmp_path: Path) -> None:
    hello = blocks("python")[0]
    assert len(hello.splitlines()) <= 15
    (folder / "hello.py").write_text(hello)
    listed = json.loads(run(folder, "tamiz", "plugins", "--json"))["plugins"]
    (mine,) = [plugin for plugin in listed if plugin["name"] == "hello-half"]
    assert (mine["distribution"], mine["error"]) == ("tamiz-hello", None)
    out = tmp_path / "half"
    run(folder, "tamiz", "build", tiny_dense, "-o", out, "--hello-half")
    explained = run(folder, "tamiz", "explain", out, "layers.0.ffn_down")
    assert "hello-half" in explained
    report = json.loads((out / "report.json").read_text())
    down = report["sites"]["layers.0.ffn_down"]
    assert down["bytes_after"] * 2 == down["bytes_before"]
    assert 1e-5 < down["techniques"][0]["metrics"]["rel_l2"] < 1e-3


def test_the_table_of_attributes_has_all_of_them() -> None:
    rows = re.findall(r"^\| `([A-Z]\w+)` \| (.*) \|$", PAGE.read_text("utf-8"), re.MULTILINE)
    groups = (api.Identity, api.Where, api.Claims, api.Offline, api.Graph, api.Planning)
    assert {name: re.findall(r"`(\w+)`", listed) for name, listed in rows} == {
        group.__name__: [field.name for field in dataclasses.fields(group)] for group in groups
    }
    listed = {name for _, names in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == {field.name for field in dataclasses.fields(api.Technique)}


def test_the_setting_is_a_flag_and_the_contract_holds(folder: Path, tiny_dense: Path) -> None:
    _, hello, test, _ = blocks("python")
    (folder / "hello.py").write_text(hello)
    (folder / "README.md").write_text("hello-half keeps some bits of the mantissa.\n")
    (folder / "test_hello.py").write_text(test)
    planned = run(folder, "tamiz", "plan", tiny_dense, "--hello-half-bits=7", "--json")
    sites = {site["site"]: site for site in json.loads(planned)["sites"]}
    assert sites["layers.0.ffn_down"]["techniques"]["hello-half"]["config"] == {"bits": 7}
    report = run(folder, "pytest", "-q", "-p", "no:cacheprovider", folder / "test_hello.py")
    assert re.search(r"1[0-9] passed", report), report
