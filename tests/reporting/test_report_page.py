import html
import itertools
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tamiz.building.build import build
from tamiz.planning.plan import choose
from tamiz.plugins import load
from tamiz.reporting.colours import BIT_STEPS, COSINE_STEPS, Step
from tamiz.reporting.gate import TrialReport, WholeModelGate
from tamiz.reporting.page import render, weights_text
from tamiz.reporting.report import (
    AttemptReport,
    Autotune,
    Choices,
    DecisionReport,
    FittedTechnique,
    GatingReport,
    Report,
    ResolvedPolicy,
    SiteDecision,
    SiteReport,
    Totals,
)


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


def test_numbers_of_the_check_stand_apart(page: str) -> None:
    shown = " ".join(page.partition("On a random input")[2].partition("</p>")[0].split())
    pattern = r", built against dense: max_relative_error \S+, kl_mean \S+, top1_agreement \S+\."
    assert re.fullmatch(pattern, shown), shown


def test_it_says_what_happened_to_the_weights(page: str) -> None:
    counts = Totals(sites=7, replaced=3, exact=2, bytes_before=9, bytes_after=9)
    assert weights_text(counts) == "3 of 7 weights replaced, 2 of them exactly"
    counts = counts.model_copy(update={"replaced": 0})
    assert weights_text(counts) == "all 7 weights kept as the source stores them"
    assert re.search(r"bytes of constants; (all \d+ weights kept|\d+ of \d+ weights)", page)


def test_it_needs_no_network(page: str) -> None:
    parsed = Links()
    parsed.feed(page)
    assert parsed.sources == []
    assert not re.search(r"https?://|@import|<script|<link", page)
    assert "prefers-color-scheme: dark" in page


def report(sites: dict[str, SiteReport], gate: WholeModelGate, source: str = "tiny") -> Report:
    """A report of nothing but sites and a gate."""
    return Report(
        source=source,
        source_sha256=None,
        build=Choices(
            policy_file=None,
            policy_hash="0" * 64,
            policy_version=None,
            policy=None,
            techniques={},
            calibration=None,
            calibration_tokens=None,
        ),
        totals=Totals(sites=1, replaced=1, exact=0, bytes_before=9, bytes_after=1),
        gate=gate,
        check={"top1_agreement": 1.0},
        sites=sites,
        conflicts=[],
        dropped=[],
        notes=[],
    )


def site(
    tensor: str | None, attempts: Sequence[AttemptReport] = (), reason: str = ""
) -> SiteReport:
    """A site of layer 0 at which the technique t is applied."""
    return SiteReport(
        kind="linear",
        node="n",
        layer=0,
        tensor=tensor,
        shape=(1, 9),
        bytes_before=9,
        bytes_after=1,
        techniques=[],
        resolved=ResolvedPolicy(enable=True, strip=True, policy={}, policy_from={}),
        gating=GatingReport(
            metric="cos_xw",
            min_mean=None,
            min_p05=None,
            max_rel_l2=None,
            judged="cos_x_w",
            fallback=False,
            mean=0.99,
            p05=0.97,
            passed=True,
        ),
        autotune=Autotune(enabled=True, attempts=list(attempts)),
        decision=SiteDecision(applied=["t"], refused=[], strip_applied=True, reason=reason),
    )


def fitted(exact: bool, applied: bool = True) -> FittedTechnique:
    """The fit of a technique."""
    return FittedTechnique(
        name="t",
        config={},
        config_from={},
        metrics={"exact": 1.0} if exact else {},
        bits_per_weight=None,
        decision=DecisionReport(applied=applied, reason="-"),
    )


@pytest.mark.parametrize(
    ("fits", "exact", "lossy"),
    [
        ([], False, False),
        ([fitted(exact=True)], True, False),
        ([fitted(exact=True), fitted(exact=False)], False, True),
        ([fitted(exact=True), fitted(exact=False, applied=False)], True, False),
        ([fitted(exact=True, applied=False), fitted(exact=False)], False, True),
        ([fitted(exact=True, applied=False)], False, False),
    ],
)
def test_a_site_is_exact_where_all_that_is_applied_is(
    fits: list[FittedTechnique], exact: bool, lossy: bool
) -> None:
    entry = site("ffn_up").model_copy(update={"techniques": fits})
    found = report({"layers.0.ffn_up": entry}, WholeModelGate(max_dppl=None, skipped="no"))
    assert (entry.exact, found.lossy) == (exact, lossy)
    page = render(found)
    assert ("<strong>unchanged" in page) != lossy
    assert ('<span class="q">exact' in page) == exact


def test_curves_and_hostile_names() -> None:
    attempt = AttemptReport(
        technique="t",
        config={"k": 1, "name": "<script>"},
        metrics={"cos_mean_x_w": 0.9},
        bits_per_weight=2.0,
        bytes=10,
        passed=False,
        reason="too <b>far</b>",
    )
    better = attempt.model_copy(
        update={
            "config": {"k": 2, "name": "<script>"},
            "metrics": {"cos_mean_x_w": 0.99},
            "bits_per_weight": 3.0,
            "passed": True,
        }
    )
    tried = {"layers.0.ffn_up": site("ffn_up", [attempt, better], "<i>")}
    gate = WholeModelGate(max_dppl=None, skipped="no")
    page = render(report(tried, gate, "<script>alert(1)</script>"))
    assert "<script" not in page
    assert "<b>far" not in page
    assert page.count("<polyline") == 2  # of the tensor, and of its column
    assert page.count("<circle") == 4
    assert "t k 1: cosine 0.9000 at 2.00 bits" in page


def test_composite_sites_share_a_column_and_decoding_is_shown() -> None:
    sites = {
        f"layers.{layer}.attention": site(None).model_copy(update={"layer": layer})
        for layer in range(2)
    }
    trial = TrialReport(refused=[], predicted=0.0, dppl=0.01, kl_decode=0.123, holds=True)
    gate = WholeModelGate(
        max_dppl=0.02,
        windows=4,
        window_tokens=1024,
        text="calibration",
        decode=True,
        trials=[trial],
        built=0,
    )
    page = render(report(sites, gate))
    assert page.count("<th>attention</th>") == 1
    assert "0.123 token by token" in page


def test_it_begins_with_size_quality_and_speed(page: str) -> None:
    cards = re.findall(r'<div class="card"><h2>(.+?)</h2>\s*<strong>(.+?)</strong>', page, re.S)
    assert [title for title, _ in cards] == ["Size", "Quality against the dense model", "Speed"]
    assert "% of" in cards[0][1]


def test_trials_are_a_plot_that_leads_to_their_rows() -> None:
    trials = [
        TrialReport(
            refused=["a"] * n,
            predicted=None,
            dppl=0.03 / (n + 1),
            kl_mean=0.01,
            ppl=10.3,
            ppl_dense=10.0,
            bytes=10_000_000 * (n + 1),
            predicted_tok_s=50.0 - n,
            holds=n > 0,
        )
        for n in range(3)
    ]
    gate = WholeModelGate(max_dppl=0.02, windows=4, window_tokens=8, trials=trials, built=2)
    page = render(report({"layers.0.ffn_up": site("ffn_up")}, gate))
    parsed = Links()
    parsed.feed(page)
    assert {"trial-1", "trial-2", "trial-3"} <= parsed.links & parsed.ids
    assert "trial 1: Δppl in percent 3 at 10.0 MB" in page
    assert "limit 2 %" in page
    assert re.search(r"\+1.00 % <small>perplexity", page)
    assert re.search(r"48 <small>tokens per second,\s+predicted", page)


def test_cells_show_bits_and_quality_and_the_legend_names_their_colours() -> None:
    page = render(report({"layers.0.ffn_up": site("ffn_up")}, WholeModelGate(max_dppl=None)))
    # 1 byte for 9 weights, and a 5 % quantile of 0.97.
    assert re.search(r'class="b0 q2"\s+title="layers.0.ffn_up: t, 0.89 bits per weight, cos', page)
    for step in (*BIT_STEPS, *COSINE_STEPS):
        assert f'<i class="{step.name}">{html.escape(step.label)}</i>' in page


@pytest.mark.parametrize("steps", [BIT_STEPS, COSINE_STEPS[::-1]], ids=["bits", "cosines"])
def test_colours_keep_their_order_in_grey_and_text_is_legible(steps: Sequence[Step]) -> None:
    lightness = [_luminance(step.colour) for step in steps]
    assert lightness == sorted(lightness)
    assert min(b - a for a, b in itertools.pairwise(lightness)) > 0.03
    for step in steps:
        dark, light = sorted((_luminance(step.colour), _luminance(step.text)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def _luminance(colour: str) -> float:
    """Relative luminance of #rrggbb (WCAG 2)."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
