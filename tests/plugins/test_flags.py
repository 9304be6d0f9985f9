"""Every flag of every technique changes a build: its graph, its weights, or what is decided."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from kit.command_line import ok, refused
from kit.composed import needs
from kit.flag_cases import CASES
from tamiz.plugins import load
from tamiz.reporting.reader import read_report
from tamiz.testing import write_tiny_llama

pytestmark = pytest.mark.slow

#: Every setting of the installed techniques by its flag, also of those that only policies list.
FLAGS = [
    flags[0]
    for technique in load().techniques().values()
    for field, flags in technique.accepted().items()
    if field not in technique.config.removed
]
#: Flags that change no build, each with a test of its own below.
UNCHANGED = {
    "--block-quant-mask-block": "the plan sets it, and without a mask it means nothing",
}
#: Random weights are no trained ones: nothing is refused for its error.
POLICY = {"version": 1, "defaults": {"gating": {"min_mean": -1}}}

Build = Callable[[str], Path]


def test_every_flag_has_a_case() -> None:
    assert set(FLAGS) - set(UNCHANGED) - set(CASES) == set()
    if len(load().working()) == len(load().installed):
        assert {*UNCHANGED, *CASES} - set(FLAGS) == set()


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a llama of one layer with some arguments, each once."""
    folder = tmp_path_factory.mktemp("flags")
    dense, calibration = folder / "dense", folder / "calibration"
    (folder / "policy.json").write_text(json.dumps(POLICY))
    (folder / "text").write_text("hello world, this is a sieve. " * 80)
    write_tiny_llama(folder / "model.gguf", layers=1)
    ok("export", folder / "model.gguf", "-o", dense, "--dtype", "float32")
    text = ("--text", folder / "text", "--windows", 2, "--samples", 128)
    ok("calibrate", dense, "-o", calibration, *text)
    rest = ("--max-dppl=off", "--policy", folder / "policy.json", "--calibration", calibration)

    @functools.cache
    def made(arguments: str) -> Path:
        out = folder / hashlib.sha256(arguments.encode()).hexdigest()[:12]
        ok("build", dense, "-o", out, *arguments.split(), *rest)
        return out

    return made


def outcome(bundle: Path) -> tuple[Any, ...]:
    """Graph and weights of a bundle, and what its report decides; nothing that echoes settings."""
    model = onnx.load(bundle / "model.onnx", load_external_data=False)
    nodes = [
        (node.op_type, *node.input, *sorted(a.SerializeToString() for a in node.attribute))
        for node in model.graph.node
    ]
    inputs = [(value.name, str(value.type)) for value in model.graph.input]
    weights = hashlib.sha256((bundle / "model.onnx.data").read_bytes()).hexdigest()
    report = json.loads((bundle / "report.json").read_text())
    decisions = [
        (site, fitted["name"], fitted["decision"], fitted["metrics"])
        for site, entry in report["sites"].items()
        for fitted in entry["techniques"]
    ]
    return nodes, inputs, weights, decisions


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag in CASES])
def test_a_flag_changes_the_build(flag: str, build: Build) -> None:
    case = CASES[flag]
    if "--ternary" in case.beside:
        needs("ternary")
    plain = case.beside if case.plain is None else case.plain
    made = build(f"{case.beside} {flag}={case.value}".strip())
    assert outcome(made) != outcome(build(plain))


def test_the_plan_sets_the_block_of_a_mask(build: Build) -> None:
    needs("block-quant", "kwta")
    report = read_report(build("--kwta=on --kwta-k=0.5 --kwta-block=8") / "report.json")
    owner, mask = report.sites["layers.0.ffn_gate"].techniques
    assert (owner.name, owner.config["mask_block"]) == ("block-quant", 8)
    assert (mask.name, mask.config["block"]) == ("kwta", 8)
    error = refused("build", "dense", "-o", "out", "--block-quant-mask-block=0")
    assert "--block-quant-mask-block" in error


def test_logits_that_are_left_out_are_minus_infinity(build: Build) -> None:
    needs("head-shortlist")
    kept = "--head-shortlist=on --head-shortlist-keep=64 --head-shortlist-dims=32"
    estimated, cut = (
        json.loads((build(arguments) / "report.json").read_text())["check"]
        for arguments in (kept, f"{kept} --head-shortlist-fill=-inf")
    )
    assert "kl_mean" in estimated
    assert "kl_mean" not in cut
    assert cut["max_relative_error"] < 0.05
