"""The page of requirements, from docs/requirements.json.

The file has the rows of each document: [requirement, where it is, tests, what is not or differs,
and why]. Where: files and flags in backticks. Tests: ``file::function``, separated by spaces. A row
has a test, or says why not; tests/docs/test_requirements.py checks that all that is named exists.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parents[2] / "docs" / "requirements.json"


class Requirement(NamedTuple):
    """One requirement of a document.

    Attributes:
        asks: What the document asks.
        where: Files and flags in backticks.
        tests: Tests of it, ``file::function``.
        why: What is not there or differs, and why.
    """

    asks: str
    where: str
    tests: tuple[str, ...]
    why: str


def read(path: Path = DATA) -> dict[str, list[Requirement]]:
    """The requirements by document."""
    return {
        document: [
            Requirement(asks, where, tuple(tests.split()), why) for asks, where, tests, why in rows
        ]
        for document, rows in json.loads(path.read_text("utf-8")).items()
    }


def page(table: Callable[[list[str], list[list[str]]], str]) -> str:
    """The page.

    Args:
        table: Makes a Markdown table of its head and its rows.
    """
    documents = read()
    every = [row for rows in documents.values() for row in rows]
    tested = sum(bool(row.tests) for row in every)
    parts = [
        "# Requirements",
        "tamiz began with five short proposals, each of a family of techniques: inputs that moved, "
        "strongest inputs, sparse bases, small seeds with deltas, and packed states. Each lists "
        "parameters, flags and metrics, and the size, speed and loss that it expects.",
        "A row of a table is a requirement of a proposal: where it is, the test that holds it, and "
        f"what is missing or differs. {tested} of {len(every)} requirements have tests. The last "
        "table has what the proposals say of two techniques together; "
        "[interactions](../reference/interactions.md) has every pair.",
    ]
    for name, rows in documents.items():
        cells = [
            [row.asks, row.where, "<br>".join(f"`{test}`" for test in row.tests), row.why]
            for row in rows
        ]
        head = ["requirement", "where", "test", "what is not, or differs"]
        parts += [f"## {name}", table(head, cells)]
    return "\n\n".join(parts)
