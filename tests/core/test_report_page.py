import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tamiz.build import build
from tamiz.plan import choose
from tamiz.plugins import load
from tamiz.report_page import render


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.ids: set[str] = set()
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "a":
            self.links.add((found["href"] or "").removeprefix("#"))
        if "id" in found:
            self.ids.add(found["id"] or "")
        self.sources += [value or "" for key, value in attrs if key == "src"]


@pytest.fixture
def page(tiny_dense: Path) -> str:
    plugins = load()
    chosen = choose(plugins.techniques(), {"block-quant": {"bits": 8}})
    build(tiny_dense, tiny_dense.parent / "out", chosen, plugins)
    return (tiny_dense.parent / "out" / "report.html").read_text("utf-8")


def test_every_cell_leads_to_its_weight(page: str) -> None:
    parsed = Links()
    parsed.feed(page)
    assert len(parsed.links) == 14
    assert parsed.links < parsed.ids
    assert {"output", "tok_embd"} < parsed.ids


def test_it_needs_no_network(page: str) -> None:
    parsed = Links()
    parsed.feed(page)
    assert parsed.sources == []
    assert not re.search(r"https?://|@import|<script|<link", page)
    assert "prefers-color-scheme: dark" in page


def test_curves_and_hostile_names() -> None:
    attempt = {
        "technique": "t",
        "config": {"k": "<script>"},
        "metrics": {"cos_mean_x_w": 0.9},
        "bits_per_weight": 2.0,
        "bytes": 10,
        "pass": False,
        "reason": "too <b>far</b>",
    }
    better = {**attempt, "bits_per_weight": 3.0, "metrics": {"cos_mean_x_w": 0.99}, "pass": True}
    tensor = {
        "resolved": {},
        "gating": {"p05": 0.97, "mean": 0.99, "judged": "cos_x_w"},
        "autotune": {"attempts": [attempt, better]},
        "decision": {"emit": ["t"], "unsafe": [], "reason": "<i>", "strip_applied": True},
    }
    site = {"layer": 0, "tensor": "ffn_up", "techniques": [], "bytes_before": 9, "bytes_after": 1}
    page = render(
        {
            "source": "<script>alert(1)</script>",
            "tamiz": "0",
            "build": {"policy_hash": "0" * 64, "policy_file": None},
            "totals": {"replaced": 1, "sites": 1, "exact": 0, "bytes_before": 9, "bytes_after": 1},
            "check": {},
            "gate": {"skipped": "no"},
            "sites": {"layers.0.ffn_up": site},
            "layers": {"0": {"tensors": {"ffn_up": tensor}}},
        }
    )
    assert "<script" not in page
    assert "<b>" not in page
    assert "<polyline" in page
    assert page.count("<circle") == 2
