"""The benchmark of techniques together: its bundles, and what it stores."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.techniques import composition


def test_bundles_are_each_technique_and_combinations_of_them() -> None:
    variants = composition.variants()
    names = list(composition.TECHNIQUES)
    assert variants["int4"] == []
    assert variants[names[0]] == composition.TECHNIQUES[names[0]]
    everything = [flag for flags in composition.TECHNIQUES.values() for flag in flags]
    assert variants["+".join(names)] == everything
    for name in composition.TOGETHER:  # recall is counted against the same without the head
        without = "+".join(part for part in name.split("+") if part != "head")
        assert without in variants


def test_with_a_head_shortlist_the_allocation_is_that_without() -> None:
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


def test_results_are_stored_with_their_origin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results.json").write_text(json.dumps({"int4": {"bytes": 5}}))
    stored = tmp_path / "composition.json"
    command = ["composition.py", "store", "models/dense", tmp_path, "--json", stored]
    monkeypatch.setattr("sys.argv", [str(word) for word in command])
    composition.main()
    record = json.loads(stored.read_text("utf-8"))
    assert record["benchmark"] == "composition"
    assert record["settings"] == {"model": "dense", "windows": 8}
    assert record["results"] == {"int4": {"bytes": 5}}
