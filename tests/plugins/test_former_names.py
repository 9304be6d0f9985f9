"""Names of earlier versions still load, and no help or page lists them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kit.command_line import ok, refused
from kit.composed import needs
from kit.rooms import ROOT
from tamiz.planning.choice import built_step_rows, by_any_name
from tamiz.planning.plan import choose
from tamiz.plugins import load

#: Arguments of earlier versions, and those of today.
FORMER = {
    "--win-attn": "--window-attention",
    "--win-attn-tokens=16 --win-attn-sinks=2": (
        "--window-attention-tokens=16 --window-attention-sinks=2"
    ),
    "--tt --block-quant=off": "--tensor-train --block-quant=off",
    "--tt-rank=4 --tt-cores=2 --tt-tolerance=0.5": (
        "--tensor-train-rank=4 --tensor-train-cores=2 --tensor-train-tolerance=0.5"
    ),
    "--sdr-target=attn_light --key-filter": "--key-filter",
    "--sdr-keep=8 --sdr-threshold=1.5": "--key-filter-keep=8 --key-filter-threshold=1.5",
    "--proc-fanout=8 --proc-target=mlp --proc-block=64": (
        "--proc-sparse-fanout=8 --proc-sparse-target=mlp --proc-sparse-block=64"
    ),
    "--head-dims=16 --head-keep=32": "--head-shortlist-dims=16 --head-shortlist-keep=32",
    "--event-topk=0.5 --event-quorum=0.7": "--event-driven-topk=0.5 --event-driven-quorum=0.7",
    "--state-pack --state-pack-exact-layers=0": "--state-pack",
}


def plan(dense: Path, *arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        ok("plan", dense, "--json", "--on-conflict=drop", *arguments)
    )
    return found


@pytest.mark.parametrize("former", FORMER)
def test_a_flag_of_an_earlier_version(former: str, tiny_dense: Path) -> None:
    today = FORMER[former]
    assert plan(tiny_dense, *former.split()) == plan(tiny_dense, *today.split())


def test_help_and_pages_list_the_current_names_only() -> None:
    known = load().techniques().values()
    current = {f"--{t.name}" for t in known} | {flag for t in known for flag in t.flags()}
    accepted = {flag for t in known for flags in t.accepted().values() for flag in flags}
    hidden = accepted - current
    assert {"--win-attn", "--tt-rank", "--sdr-keep", "--proc-fanout", "--head-keep"} <= hidden
    texts = [ok("build", "--help"), *(ok("help", technique.name) for technique in known)]
    pages = [ROOT / "docs" / "reference" / name for name in ("cli.md", "techniques.md")]
    words = {word for text in texts for word in text.split()}
    words |= {word.strip("`|,") for page in pages for word in page.read_text("utf-8").split()}
    assert words & hidden == set()


def test_the_help_of_a_technique_fits_a_screen() -> None:
    for technique in load().techniques().values():
        assert len(ok("help", technique.name).splitlines()) <= 40, technique.name


def test_a_former_name_is_a_topic_of_help() -> None:
    needs("tensor-train")
    assert ok("help", "tt") == ok("help", "tensor-train")


def test_a_policy_of_an_earlier_version(tiny_dense: Path, tmp_path: Path) -> None:
    needs("window-attention", "state-pack")
    plans = []
    for window, more in (("win-attn", {"exact_layers": 0}), ("window-attention", {})):
        sections = {window: {"tokens": 16}, "state-pack": {"keep": 8, **more}}
        entry = {"techniques": sections}
        policy = {"version": 1, "ranges": [{"layers": "0-1", **entry}], "defaults": entry}
        (tmp_path / "policy.json").write_text(json.dumps(policy))
        plans.append(plan(tiny_dense, "--policy", tmp_path / "policy.json"))
    assert plans[0]["sites"] == plans[1]["sites"]
    both = {"win-attn": {"tokens": 8}, "window-attention": {"tokens": 9}}
    policy = {"version": 1, "defaults": {"techniques": both}}
    (tmp_path / "policy.json").write_text(json.dumps(policy))
    error = refused("plan", tiny_dense, "--policy", tmp_path / "policy.json")
    assert '["win-attn"]: unknown key' in error


def test_a_removed_setting_keeps_its_value(tiny_dense: Path) -> None:
    needs("state-pack")
    error = refused("plan", tiny_dense, "--state-pack-exact-layers=2")
    assert "exact_layers is no longer a setting" in error


def test_a_report_of_an_earlier_version_is_repeated(tiny_dense: Path, tmp_path: Path) -> None:
    needs("window-attention")
    one, two = tmp_path / "one", tmp_path / "two"
    ok("build", tiny_dense, "-o", one, "--window-attention-tokens=16", "--max-dppl=off")
    text = (one / "report.json").read_text()
    old = tmp_path / "old.json"
    old.write_text(text.replace('"window-attention"', '"win-attn"'))
    assert old.read_text() != text
    ok("build", tiny_dense, "-o", two, "--from-report", old)
    for name in ("model.onnx", "model.onnx.data"):
        assert (one / name).read_bytes() == (two / name).read_bytes(), name


def test_python_takes_former_names() -> None:
    needs("window-attention")
    known = load().techniques()
    (choice,) = (c for c in choose(known, {"win-attn": {"tokens": 7}}) if c.requested)
    assert (choice.technique.name, choice.config.model_dump()["tokens"]) == ("window-attention", 7)
    assert by_any_name(known)["tt"] is known["tensor-train"]
    assert built_step_rows(known, {"win-attn": {"config": {"tokens": 7}}}) is None
