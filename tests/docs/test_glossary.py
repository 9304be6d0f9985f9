"""The glossary has the words that readers meet, and nothing else."""

import inspect
import re

import tamiz.api
from kit.rooms import ROOT

CONCEPTS = ROOT / "docs" / "concepts.md"
#: Words in names of classes that need no definition: plain English, or of the field.
PLAIN = {
    "access", "autotune", "claims", "config", "cost", "editor", "error", "exporter", "graph",
    "identity", "inputs", "kind", "linear", "mode", "note", "offline", "part", "pass", "phase",
    "planning",
    "resource", "sensitivity", "standing", "state", "statistics", "strength", "tamiz", "where",
}  # fmt: skip


def words() -> list[str]:
    """The words that the glossary defines."""
    table = CONCEPTS.read_text("utf-8").partition("## Glossary")[2]
    return re.findall(r'^\| <a id="[^"]+"></a>([^|]+?) \|', table, re.M)


def test_a_word_is_used() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    texts = [page.read_text("utf-8") for page in pages]
    steps = CONCEPTS.read_text("utf-8").partition("## Glossary")[0]
    text = "\n".join([*(t for t in texts if "## Glossary" not in t), steps]).lower()
    assert [word for word in words() if word.lower() not in text] == []
    assert len(words()) > 20


def test_a_noun_that_plugins_import_is_plain_or_defined() -> None:
    classes = [n for n in tamiz.api.__all__ if inspect.isclass(getattr(tamiz.api, n))]
    nouns = {part.lower() for name in classes for part in re.findall(r"[A-Z][a-z]+", name)}
    defined = {part for word in words() for part in word.lower().split()}
    assert nouns - PLAIN - defined == set()
