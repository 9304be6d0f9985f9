import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tamiz.building.build import build
from tamiz.files.bundle import Bundle
from tamiz.planning.plan import choose
from tamiz.plugins import load
from tamiz.reporting.page import render


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
    assert len(parsed.links) == 17  # and the head, the embedding, and the way back
    assert parsed.links <= parsed.ids
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
        "config": {"k": 1, "name": "<script>"},
        "metrics": {"cos_mean_x_w": 0.9},
        "bits_per_weight": 2.0,
        "bytes": 10,
        "pass": False,
        "reason": "too <b>far</b>",
    }
    better = {**attempt, "config": {"k": 2, "name": "<script>"}, "pass": True}
    better |= {"bits_per_weight": 3.0, "metrics": {"cos_mean_x_w": 0.99}}
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
    assert "<b>far" not in page
    assert page.count("<polyline") == 2  # of the tensor, and of its column
    assert page.count("<circle") == 4
    assert "t k 1: cosine 0.9000 at 2.00 bits" in page


def test_composite_sites_share_a_column_and_decoding_is_shown(tiny_dense: Path) -> None:
    build(tiny_dense, tiny_dense.parent / "out", choose(load().techniques(), {}), load())
    report = Bundle.open(tiny_dense.parent / "out").json("report.json")
    for layer in range(2):
        about = {
            "resolved": {},
            "gating": {"p05": None, "judged": None, "min_mean": None},
            "autotune": {"attempts": []},
            "decision": {"emit": ["t"], "unsafe": [], "reason": "", "strip_applied": False},
        }
        report["sites"][f"layers.{layer}.attention"] = about | {
            "layer": layer,
            "tensor": None,
            "techniques": [],
            "bytes_before": 0,
            "bytes_after": 0,
        }
    trial = {"refused": [], "predicted": 0.0, "dppl": 0.01, "kl_mean": 1e-9, "ppl": 9.0}
    trial |= {"ppl_dense": 9.0, "kl_decode": 0.123, "ppl_decode": 9.1, "ppl_decode_dense": 9.0}
    trial |= {"holds": True}
    report["gate"] = {"skipped": None, "max_dppl": 0.02, "windows": 4, "window_tokens": 1024}
    report["gate"] |= {"text": "calibration", "decode": True, "trials": [trial], "result": trial}
    page = render(report)
    assert page.count("<th>attention</th>") == 1
    assert "0.123 token by token" in page
