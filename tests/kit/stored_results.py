"""Results as benchmarks store them, and the program that makes pages of them."""

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kit.rooms import ROOT
from tamiz.evaluation.bench import Measurement, ratios

SCRIPT = ROOT / "tools" / "site" / "results.py"
README = "# tamiz\n\n{0}\n\nearlier text\n\n{1}\n\n## Install\n"


def made(decode: float, prefill: float) -> Measurement:
    measured = Measurement(load_s=0.5)
    for length, speed in ((128, decode), (2000, decode / 2)):
        measured.decode[length] = [speed, speed]
    measured.prefill[512] = [prefill, prefill]
    return measured


def store(
    folder: Path, name: str, benchmark: str, found: Any, processor: str = "CPU", **settings: Any
) -> None:
    record = {
        "benchmark": benchmark, "date": "2026-01-02", "commit": "abc",
        "machine": {
            "processor": processor, "cores": 2, "memory_gb": 8.0, "isa": "avx2", "load": 0.1
        },
        "versions": {"tamiz": "0"}, "settings": settings, "results": found,
    }  # fmt: skip
    (folder / f"{name}.json").write_text(json.dumps(record))


def store_peers(
    results: ModuleType, decode: float = 1234.0, name: str = "peers-tiny", processor: str = "CPU"
) -> None:
    ours, theirs = made(decode, 5000.0), made(20.0, 40.5)
    found: dict[str, Any] = {
        "threads": 2,
        "read_gb_s": 9.0,
        "tamiz": ours.summary(),
        "llama.cpp": theirs.summary(),
    }
    found["llama.cpp"]["ratio"] = {
        "decode_tok_s": ratios(ours.decode, theirs.decode),
        "prefill_tok_s": ratios(ours.prefill, theirs.prefill),
    }
    found["skipped"] = {"genai": "no model was given for it"}
    store(results.RESULTS, name, "peers", found, processor, gguf="tiny.gguf", bundle="b")


def run(results: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["results.py", *arguments])
    results.main()
