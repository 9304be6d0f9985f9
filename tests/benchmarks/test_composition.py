"""The benchmark of techniques together: its bundles, its table and its plot."""

import importlib.util
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

SOURCE = Path(__file__).parents[2] / "benchmarks" / "composition.py"


@pytest.fixture
def composition() -> Any:
    spec = importlib.util.spec_from_file_location("composition", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_bundles_are_each_technique_and_combinations_of_them(composition: Any) -> None:
    variants = composition.variants()
    names = list(composition.TECHNIQUES)
    assert variants["int4"] == []
    assert variants[names[0]] == composition.TECHNIQUES[names[0]]
    everything = [flag for flags in composition.TECHNIQUES.values() for flag in flags]
    assert variants["+".join(names)] == everything
    for name in composition.TOGETHER:  # recall is counted against the same without the head
        without = "+".join(part for part in name.split("+") if part != "head")
        assert without in variants


def test_with_a_head_shortlist_the_allocation_is_that_without(composition: Any) -> None:
    def kwta(applied: bool, **fields: float) -> dict[str, Any]:
        entry = {"name": "kwta", "config": {"k": None, **fields}, "decision": {"applied": applied}}
        return {"techniques": [{"name": "block-quant", "config": {}}, entry]}

    found = {"strength": 1.5}
    sites = {"a": kwta(True, **found), "b": kwta(False, **found)}
    policy = composition.allocation({"sites": sites})
    assert policy["sites"] == {
        "a": {"techniques": {"kwta": found}},
        "b": {"techniques": {"kwta": {"enable": False}}},
    }
    assert composition.without_head("kwta+head+kv") == "kwta+kv"
    assert composition.without_head("head") == "int4"


@pytest.fixture
def results() -> dict[str, Any]:
    def one(ratio: float, dppl: float, recall: float | None) -> dict[str, Any]:
        speed = {"decode_tok_s": {"128": 200 * ratio}, "ratio": {"128": ratio}}
        quality = {"dppl": dppl, "dppl_2048": 0.0, "kl": 0.01, "top1": 0.97, "recall": recall}
        return {"bytes": 96_500_000, "speed": speed, "quality": quality}

    return {"int4": one(1, 0, None), "head": one(1.2, 0.015, 0.996), "kv": {"flags": []}}


def test_the_table_holds_what_was_measured(composition: Any, results: dict[str, Any]) -> None:
    lines = composition.table(results, {}).splitlines()
    assert len(lines) == 4  # kv was not
    assert lines[-1] == (
        "| head | 240 (1.20 ×) | +1.50 % | +0.00 % | 0.0100 | 97.0 % | 99.60 % | 96.5 |"
    )


def test_peers_stand_below_with_the_ratios_of_their_own_run(
    composition: Any, results: dict[str, Any]
) -> None:
    ratio = {"decode_tok_s": {"128": 2.0}}
    peers = {"tamiz": {}, "llama.cpp": {"decode_tok_s": {"128": 98.0}, "ratio": ratio}}
    lines = composition.table(results, peers).splitlines()
    assert lines[-1] == "| llama.cpp | 98 (0.50 ×) |  |  |  |  |  |  |"
    assert len({line.count("|") for line in lines}) == 1


def test_the_plot_is_drawn_to_scale(composition: Any, results: dict[str, Any]) -> None:
    svg = ElementTree.fromstring(composition.plot(results))
    circles = [e for e in svg.iter() if e.tag.endswith("circle")]
    (base, head) = ((float(c.get("cx")), float(c.get("cy"))) for c in circles)
    assert base[0] < head[0]
    assert base[1] > head[1]  # y grows downwards
    labels = [e.text for e in svg.iter() if e.tag.endswith("text")]
    assert {"int4", "head", "decode at 128"} <= set(labels)
