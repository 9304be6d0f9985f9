"""The rows of the design's interaction table that are conflicts, through the command line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from kit.command_line import tamiz
from tamiz.plugins import load

pytestmark = pytest.mark.slow

#: Flags, the techniques that meet, rule, what the reason has to name.
ROWS = [
    ("--proc-sparse=on --seed-delta=on", ("proc-sparse", "seed-delta"), "one-owner", "weights"),
    ("--proc-sparse=on --tensor-train=on", ("proc-sparse", "tensor-train"), "one-owner", "weights"),
    ("--proc-sparse=on --ternary=on", ("proc-sparse", "ternary"), "one-owner", "weights"),
    ("--seed-delta=on --ternary=on", ("seed-delta", "ternary"), "one-owner", "weights"),
    (
        "--event-driven=on --event-driven-block=24 --ternary=on",
        ("event-driven", "ternary"),
        "one-partition",
        "blocks of 24",
    ),
    (
        "--kwta=on --kwta-block=8 --state-pack-mask=on --state-pack-mask-block=16",
        ("kwta", "state-pack-mask"),
        "one-partition",
        "equal blocks",
    ),
    ("--state-pack-mlp=on", ("state-pack-mlp",), "required-capability", "packed-bits"),
    (
        "--state-pack-mlp=ternary --proc-sparse=on",
        ("state-pack-mlp",),
        "required-capability",
        "packed-bits",
    ),
    (
        "--state-pack-mlp=on --ternary=on --event-driven=on",
        ("event-driven", "state-pack-mlp"),
        "one-owner",
        "budget",
    ),
    ("--seed-delta=on --tensor-train=on", ("seed-delta", "tensor-train"), "one-owner", "weights"),
    ("--block-quant=on --tensor-train=on", ("block-quant", "tensor-train"), "one-owner", "weights"),
    ("--state-pack=on --key-filter=on", ("key-filter", "state-pack"), "one-owner", "sketch"),
    (
        "--event-attention=on --state-pack=on",
        ("event-attention", "state-pack"),
        "one-owner",
        "sketch",
    ),
    (
        "--head-shortlist=on --block-quant=off",
        ("head-shortlist",),
        "required-capability",
        "packed-tiles",
    ),
    ("--kwta=on --tensor-train=on", ("kwta",), "required-capability", "skippable-blocks"),
    ("--kwta=on --block-quant=off", ("kwta",), "required-capability", "skippable-blocks"),
    (
        "--event-driven=on --tensor-train=on",
        ("event-driven",),
        "required-capability",
        "skippable-blocks",
    ),
    (
        "--event-driven=on --window-attention=on",
        ("event-driven", "window-attention"),
        "excluded-capability",
        "windows",
    ),
    (
        "--event-driven=on --key-filter=on",
        ("event-driven", "key-filter"),
        "excluded-capability",
        "chosen-keys",
    ),
    (
        "--event-attention=on --window-attention=on",
        ("event-attention", "window-attention"),
        "excluded-capability",
        "windows",
    ),
    (
        "--kwta=on --kwta-block=8 --proc-sparse=on",
        ("kwta", "proc-sparse"),
        "one-partition",
        "blocks of 8",
    ),
]


def installed(flags: str) -> bool:
    """Whether all techniques of the flags are there; a tox environment may have few."""
    names = [flag.removeprefix("--").partition("=")[0] for flag in flags.split()]
    techniques = load().techniques()
    switches = {t.flag(f): n for n, t in techniques.items() for f in t.config.model_fields}
    return all(name in techniques or f"--{name}" in switches for name in names)


@pytest.mark.parametrize(("flags", "techniques", "rule", "named"), ROWS)
def test_a_conflict_names_everything_and_nothing_is_written(
    tiny_dense: Path, flags: str, techniques: tuple[str, ...], rule: str, named: str
) -> None:
    if not installed(flags):
        pytest.skip(f"not all of {flags} are installed")
    result = tamiz("plan", tiny_dense, *flags.split(), "--json")
    assert result.exit_code == 2
    conflicts: list[dict[str, Any]] = json.loads(result.stdout)["conflicts"]
    met = [c for c in conflicts if (tuple(c["techniques"]), c["rule"]) == (techniques, rule)]
    assert met
    sites = json.loads(tamiz("inspect", tiny_dense, "--json").stdout)["sites"]
    for conflict in met:
        assert conflict["site"] in {site["id"] for site in sites}
        assert conflict["site"] in conflict["reason"]
        assert named in conflict["reason"]
        assert all(name in conflict["reason"] for name in techniques)
        assert conflict["remedies"]
    assert len(result.stderr.splitlines()) == 1
    built = tamiz("build", tiny_dense, "-o", tiny_dense.parent / "out", *flags.split())
    assert built.exit_code == 2
    assert built.stderr == result.stderr
    assert os.listdir(tiny_dense.parent) == [tiny_dense.name]


@pytest.mark.parametrize("flags", [row[0] for row in ROWS])
def test_dropping_leaves_a_plan_without_conflicts(tiny_dense: Path, flags: str) -> None:
    if not installed(flags):
        pytest.skip(f"not all of {flags} are installed")
    result = tamiz("plan", tiny_dense, *flags.split(), "--on-conflict=drop", "--json")
    assert result.exit_code == 0, result.output
    plan = json.loads(result.stdout)
    assert plan["conflicts"]
    assert plan["dropped"]
    gone = {(entry["site"], entry["technique"]) for entry in plan["dropped"]}
    left = {(site["site"], name) for site in plan["sites"] for name in site["techniques"]}
    assert left.isdisjoint(gone)
