"""What a release is made by: versions, wheels and workflows agree."""

import ast
import configparser
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from kit.rooms import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
#: A commit, and the version that it is; or a workflow of this repository.
PINNED = re.compile(r"[\w./-]+@[0-9a-f]{40}  # v\d+(\.\d+)+|\./\.github/workflows/\w+\.yml")


def test_both_packages_have_one_version_and_tamiz_accepts_its_ops() -> None:
    tool = ROOT / "tools" / "check_version.py"
    done = subprocess.run([sys.executable, tool], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    needs = Requirement(re.findall(r'"(tamiz-ops.*)"', project)[0])
    assert done.stdout.strip() in needs.specifier
    major, minor, _ = (int(part) for part in done.stdout.split("."))
    assert f"{major}.{minor + 1}.0" not in needs.specifier


def test_both_packages_bring_the_license() -> None:
    """A distribution holds files of its own folder only."""
    own = (ROOT / "ort_ops" / "LICENSE").read_bytes()
    assert own == (ROOT / "LICENSE").read_bytes()


def test_wheels_are_built_for_every_python_that_is_promised() -> None:
    project = (ROOT / "ort_ops" / "pyproject.toml").read_text("utf-8")
    promised = SpecifierSet(re.findall(r'requires-python = "(.*)"', project)[0])
    built = [int(minor) for minor in re.findall(r'"cp3(\d+)-\*"', project)]
    assert built == list(range(min(built), max(built) + 1))
    assert f"3.{min(built)}" in promised
    assert f"3.{min(built) - 1}" not in promised


def test_the_check_of_wheels_runs_the_readme_with_what_it_installs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    tool = importlib.import_module("check_wheels")
    code = tool.bare_session(Path("/made/bundle"))
    assert tool.PROMPT in code
    assert "small/" not in code
    nodes = list(ast.walk(ast.parse(code)))
    names = {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    names |= {str(n.module) for n in nodes if isinstance(n, ast.ImportFrom)}
    held = {name.replace("-", "_") for name in tool.BARE} | {"numpy"}  # which onnxruntime requires
    assert names - set(sys.stdlib_module_names) <= held


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=[path.stem for path in WORKFLOWS])
def test_a_workflow_pins_its_actions_and_runs_what_there_is(workflow: Path) -> None:
    text = workflow.read_text("utf-8")
    assert [used for used in re.findall(r"uses: (.+)", text) if not PINNED.fullmatch(used)] == []
    assert "permissions:\n  contents: read\n" in text
    jobs = text.count("\n    runs-on: ")
    assert text.count("\n    timeout-minutes: ") == jobs
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    named = re.findall(r"tox -e ([\w,-]+)$", text, re.M)
    matrix = re.findall(r"environment: \[(.+)\]", text)
    environments = {name for names in named for name in names.split(",")}
    environments |= {name for names in matrix for name in names.split(", ")}
    assert {name for name in environments if f"testenv:{name}" not in tox} == set()
    tools = re.findall(r"tools/\w+\.py", text)
    assert [tool for tool in tools if not (ROOT / tool).is_file()] == []


def test_there_is_a_workflow_for_every_purpose() -> None:
    found = {path.stem for path in WORKFLOWS}
    assert found >= {"tests", "sanitizers", "wheels", "docs", "release"}
