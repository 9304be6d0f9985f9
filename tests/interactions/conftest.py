"""Fixtures of the compositions: building by the command line, and a calibration."""

import json
from pathlib import Path

import pytest

from kit.command_line import ok
from kit.composed import POLICY, Compose, Composed
from kit.llama_reference import dense_llama
from tamiz.plugins import load


@pytest.fixture
def compose(tiny_dense: Path) -> Compose:
    def make(*flags: str, exact: bool = True) -> Composed:
        policy = tiny_dense.parent / "policy.json"
        policy.write_text(json.dumps(POLICY))
        path = tiny_dense.parent / "built"
        chosen = ("--policy", policy, *flags)
        planned = [flag for flag in chosen if "calibration" not in str(flag)]
        plan = json.loads(ok("plan", tiny_dense, *planned, "--json"))
        report = json.loads(
            ok("build", tiny_dense, "-o", path, *chosen, "--max-dppl=off", "--json")
        )
        assert report["build"]["policy_hash"] == plan["policy_hash"]
        for site in plan["sites"]:
            applied = [
                t["name"]
                for t in report["sites"].get(site["site"], {"techniques": []})["techniques"]
                if t["decision"]["applied"]
            ]
            # a technique may leave a site alone that its own flags take out
            assert applied == [n for n in site["techniques"] if n in applied], site["site"]
        told, stored = plan["totals"]["bytes"]["after"], report["totals"]["bytes_after"]
        assert told == stored or (not exact and told > stored)
        return Composed(path, plan, *dense_llama(tiny_dense, load()))

    return make


@pytest.fixture
def calibration(tiny_dense: Path) -> Path:
    text, path = tiny_dense.parent / "text", tiny_dense.parent / "calibration.safetensors"
    text.write_text("hello world, the sieve keeps what is large. " * 100)
    ok("calibrate", tiny_dense, "--text", text, "-o", path)
    return path
