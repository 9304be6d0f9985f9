"""The drawings of docs/architecture.md are those of the imports."""

import importlib
import re
from collections.abc import Callable

import pytest

from kit.rooms import (
    CPP_ROOMS,
    PACKAGES,
    ROOMS,
    ROOT,
    TECHNIQUES,
    Arrows,
    cpp_arrows,
    package_arrows,
    reachable,
    room_arrows,
)

PAGE = (ROOT / "docs" / "architecture.md").read_text("utf-8")
DRAWINGS: dict[str, tuple[set[str], Callable[[], Arrows]]] = {
    "packages": (set(PACKAGES) - set(TECHNIQUES) | {"techniques"}, package_arrows),
    "rooms of tamiz": (set(ROOMS), room_arrows),
    "rooms of ort_ops/src": (set(CPP_ROOMS), cpp_arrows),
}


def drawn(title: str) -> Arrows:
    """The parts of a drawing, and those that the arrows of each point to."""
    _, _, rest = PAGE.partition(f"<!-- drawing: {title} -->\n```mermaid\n")
    lines = rest.partition("```")[0].splitlines()
    arrows: Arrows = {m[1]: set() for line in lines if (m := re.match(r" +(\w+)\[", line))}
    for line in lines:
        if m := re.match(r" +(\w+) --> (\w+)$", line):
            arrows[m[1]].add(m[2])
    return arrows


@pytest.mark.parametrize("title", DRAWINGS)
def test_a_drawing_has_all_parts(title: str) -> None:
    parts, _ = DRAWINGS[title]
    assert set(drawn(title)) == parts


@pytest.mark.parametrize("title", DRAWINGS)
def test_every_arrow_is_an_import(title: str) -> None:
    _, found = DRAWINGS[title]
    real = found()
    wrong = [(a, b) for a, below in drawn(title).items() for b in below if b not in real[a]]
    assert wrong == []


@pytest.mark.parametrize("title", DRAWINGS)
def test_every_import_follows_arrows(title: str) -> None:
    _, found = DRAWINGS[title]
    arrows = drawn(title)
    wrong = [(a, b) for a, below in found().items() for b in below if b not in reachable(arrows, a)]
    assert wrong == []


def test_modules_that_the_page_names_exist() -> None:
    names = set(re.findall(r"`(tamiz(?:\.\w+)+)`", PAGE))
    assert len(names) > 10
    for name in names:
        importlib.import_module(name)
