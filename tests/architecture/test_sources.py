"""What holds for every source file: its size, its place, what tests import."""

import ast
import configparser
import re
from pathlib import Path

import pytest

from kit.alone import COMPANIONS
from kit.rooms import ROOT
from tamiz.cli import COMMANDS

TESTS = ROOT / "tests"
LINES = 400
#: Folders of sources; others hold what was built or installed.
SOURCES = ("tamiz", "plugins", "exporters", "graph_passes", "ort_ops", "tests", "benchmarks",
           "docs", "examples", "tools")  # fmt: skip

#: Longest function of what ships, in lines without decorators.
FUNCTION = 60
SHIPPED = ("tamiz", "plugins", "graph_passes", "exporters", "ort_ops/tamiz_ops")
#: The reference of attention has the op's inputs and attributes as its parameters.
LONG = {"attention_reference.attention"}


def sources(*suffixes: str) -> list[Path]:
    """The source files of the repository."""
    return [
        path
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in suffixes and "build" not in path.relative_to(ROOT).parts
    ]


def test_files_are_short() -> None:
    files = sources(".py", ".cc", ".h")
    assert len(files) > 300
    lines = {str(path.relative_to(ROOT)): len(path.read_bytes().splitlines()) for path in files}
    long = {name: count for name, count in lines.items() if count >= LINES}
    assert long == {}


def test_no_test_imports_a_test() -> None:
    tests = {path.stem for path in TESTS.rglob("test_*.py")} | {"conftest"}
    wrong = []
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            wrong += [f"{path.name} imports {n}" for n in names if set(n.split(".")) & tests]
    assert wrong == []


def test_a_function_fits_on_a_screen() -> None:
    found = set()
    for path in (path for room in SHIPPED for path in sorted((ROOT / room).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= FUNCTION:
                    found.add(f"{path.stem}.{node.name}")
    assert found - LONG == set()


def test_class_variables_have_a_type() -> None:
    """In Python 3.10 pydantic refuses a class with a bare `ClassVar`."""
    files = [path for room in SHIPPED for path in (ROOT / room).rglob("*.py")]
    bare = re.compile(r": ClassVar(?: =|$)", re.M)
    assert [path.name for path in files if bare.search(path.read_text("utf-8"))] == []


def test_helpers_of_tests_are_in_the_kit() -> None:
    others = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if not path.name.startswith("test_") and path.name != "conftest.py"
    }
    assert {name for name in others if not name.startswith("kit/")} == set()


def test_every_folder_of_tests_is_run_by_tox() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    commands = " ".join(section.get("commands", "") for section in tox.values())
    plugins = {path.parent.name for path in TESTS.glob("plugins/*/test_*.py")}
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert {name.replace("_", "-") for name in plugins} == set(COMPANIONS)
    assert {name for name in folders if f"tests/{name}" not in commands} == set()


def test_the_oldest_versions_are_those_that_are_promised() -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    pinned = tox["testenv:oldest"]["deps"].split()
    promised = (ROOT / "pyproject.toml").read_text("utf-8").partition("\ndependencies = [")[2]
    bounds = re.findall(r'"([\w-]+)>=([\d.]+)"', promised.partition("]")[0])
    assert sorted(pinned) == sorted(f"{name}=={version}" for name, version in bounds)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_its_own_file(command: str) -> None:
    source = (ROOT / "tamiz" / "cli" / f"{command}.py").read_text("utf-8")
    assert source.count("@click.command(") == 1
    assert f'@click.command("{command}"' in source
