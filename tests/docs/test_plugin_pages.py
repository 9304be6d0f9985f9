"""The pages of plugins have one form, and tables of flags that the generator fills in."""

import re

from kit.rooms import ROOT
from tamiz.plugins import load

PAGES = sorted((ROOT / "plugins").glob("tamiz_*/README.md"))
PARTS = ["What", "When it pays", "Use", "Limits", "Results"]


def test_every_page_has_the_parts_in_order() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        found = re.findall(r"^\*\*(What|When it pays|Use|Limits|Results)\b", text, re.MULTILINE)
        assert found == PARTS, page


def test_pages_are_short() -> None:
    lines = [len(page.read_text("utf-8").splitlines()) for page in PAGES]
    assert sum(lines) <= 470
    assert max(lines) <= 60


def test_every_technique_has_its_flags_on_one_page() -> None:
    marked = [
        name
        for page in PAGES
        for names in re.findall(r"<!-- flags: (.+) -->", page.read_text("utf-8"))
        for name in names.split()
    ]
    built_in = [t.name for p in load().installed if p.distribution == "tamiz" for t in p.techniques]
    assert sorted(marked) == sorted(built_in)
    for technique in load().techniques().values():
        if technique.name in marked:
            pages = "".join(page.read_text("utf-8") for page in PAGES)
            assert all(f"| `{flag}` |" in pages for flag in technique.flags())
