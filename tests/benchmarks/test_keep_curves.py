"""The benchmark of what leaving inputs out costs: what it reads off its points."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.techniques import keep_curves
from tamiz.plugins import load


def point(group: str, rule: str, kept: float, dppl: float) -> dict[str, Any]:
    return {"group": group, "rule": rule, "kept": kept, "dppl": dppl, "kl": 2 * dppl}


POINTS = [
    point("o", "kwta", 0.8, 0.01),
    point("o", "kwta", 0.6, 0.05),
    point("o", "ar1", 0.5, 0.02),
]


@pytest.mark.parametrize(
    ("level", "expected"), [(0.005, 0.9), (0.01, 0.8), (0.03, 0.7), (0.05, 0.6), (0.2, None)]
)
def test_a_level_is_found_between_neighbours(level: float, expected: float | None) -> None:
    found = keep_curves.at_level(POINTS[:2], "dppl", level)
    assert found == (None if expected is None else pytest.approx(expected))


def test_the_table_compares_at_equal_losses() -> None:
    lines = keep_curves.table(POINTS).splitlines()
    assert lines[0].startswith("| sites | rule | Δppl 0.01 | Δppl 0.02 | Δppl 0.05 | KL 0.01 ")
    assert lines[2].startswith("| o | kwta | 0.800 | 0.750 | 0.600 |  | 0.800 | 0.686 |")
    assert lines[3].startswith("| o | ar1 | 0.750 | 0.500 |  |  |  |  |")
    assert lines[-1] == "| o | ar1 | 0.500 | +2.00 % | 0.0400 |"


def test_the_plot_has_a_curve_a_rule() -> None:
    svg = ElementTree.fromstring(keep_curves.plot(POINTS))
    curves = [e for e in svg.iter() if e.tag.endswith("path") and e.get("stroke") != "black"]
    assert [curve.get("d", "").count("L") for curve in curves] == [2, 1]


def test_the_policy_leaves_the_rules_to_the_group(tmp_path: Path) -> None:
    for pattern in keep_curves.GROUPS.values():
        written = json.loads(keep_curves.policy(tmp_path / "p.json", pattern).read_text())
        ((others, entry),) = written["sites"].items()
        off = re.compile(others.removeprefix("re:"))
        names = ("attn_q", "attn_k", "attn_v", "attn_o", "ffn_gate", "ffn_up", "ffn_down")
        on = {name for name in names if not off.fullmatch(f"layers.11.{name}")}
        assert on == {name for name in names if re.fullmatch(pattern, name)}
        assert off.fullmatch("output")
        assert set(entry["techniques"]) == {"kwta", "event-driven"}


def test_the_rules_are_configurations_of_their_techniques() -> None:
    techniques = load().techniques()
    for technique, fields in keep_curves.RULES.values():
        if technique not in techniques:
            pytest.skip(f"not installed: {technique}")
        techniques[technique].config(**fields, **{keep_curves.FRACTION[technique]: 0.5})
        told = {metric.name for metric in techniques[technique].metrics}
        assert set(keep_curves.COUNTED[technique]) <= told
