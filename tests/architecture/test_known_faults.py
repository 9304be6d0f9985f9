"""Every fault that was once met has a test that has the right value."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from kit.known_faults import FAULTS

TESTS = Path(__file__).parents[1]
#: How many faults of each kind there were.
COUNTS = {"A": 6, "B": 5, "C": 12, "E": 10, "G": 15}


@cache
def names(path: Path) -> set[str]:
    """The functions of a module."""
    return {node.name for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.FunctionDef)}  # fmt: skip


def test_no_fault_is_left_out() -> None:
    numbered = {f"{kind}{i}" for kind, count in COUNTS.items() for i in range(1, count + 1)}
    assert set(FAULTS) == numbered | {"D"} | {f"F{i}" for i in range(13)}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_tests(fault: str) -> None:
    for test in FAULTS[fault][1].split():
        path, _, name = test.partition("::")
        assert name in names(TESTS / path), test
