"""Every requirement of the documents has a test or a reason, and names what exists."""

import ast
import functools
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from kit.rooms import ROOT

#: The documents, and what they say of two techniques.
DOCUMENTS = {
    "event_driven.txt",
    "kwta.txt",
    "proc_sparse.txt",
    "seed_delta_policy.txt",
    "state_pack.txt",
    "Interactions",
}


@pytest.fixture
def requirements(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "site"))
    return importlib.import_module("requirements")


@functools.cache
def functions(path: Path) -> frozenset[str]:
    """Names of the functions of a file."""
    tree = ast.parse(path.read_text("utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


def missing(rows: list) -> list[str]:
    """Files, flags and tests that rows name and that do not exist."""
    reference = "".join(
        (ROOT / "docs" / "reference" / name).read_text("utf-8")
        for name in ("cli.md", "techniques.md")
    )
    flags = set(re.findall(r"--[a-z][a-z0-9-]*", reference))
    found = []
    for row in rows:
        for name in re.findall(r"`([^`]+)`", row.where):
            known = name in flags if name.startswith("--") else (ROOT / name).exists()
            found += [] if known else [name]
        for test in row.tests:
            path, _, name = test.partition("::")
            known = (ROOT / path).is_file() and name in functions(ROOT / path)
            found += [] if known and name.startswith("test_") else [test]
    return found


def test_all_that_is_named_exists(requirements: ModuleType) -> None:
    documents = requirements.read()
    assert {name.partition(":")[0] for name in documents} == DOCUMENTS
    assert missing([row for rows in documents.values() for row in rows]) == []


def test_a_row_has_a_test_or_a_reason(requirements: ModuleType) -> None:
    every = [row for rows in requirements.read().values() for row in rows]
    assert [row.asks for row in every if not (row.tests or row.why)] == []
    assert [row.asks for row in every if row.tests and not row.where] == []
    asks = [row.asks for row in every]
    assert len(set(asks)) > 90


def test_what_disappears_is_named(requirements: ModuleType) -> None:
    tests = ("tests/docs/test_requirements.py::test_gone", "tests/gone.py::test_it")
    row = requirements.Requirement("x", "`docs/gone.md` `--gone`", tests, "")
    assert missing([row]) == ["docs/gone.md", "--gone", *tests]
