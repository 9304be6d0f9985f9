"""A policy protects what it does not name."""

from pathlib import Path
from typing import Any

import pytest

from kit.policies import SEEDED, SITES, TECHNIQUES, SeedConfig, read, rules, technique, write
from tamiz.api.site import SiteKind
from tamiz.planning.plan import choose, make_plan
from tamiz.planning.policy import STRICT, read_policy

UP: dict[str, Any] = {"layers": {"5": {"tensors": {"attn_q": {"techniques": {"seeded": {}}}}}}}


@pytest.mark.parametrize(
    ("policy", "acts"),
    [
        ({}, {"ffn_up", "attn_q", "output"}),
        ({"defaults": {"K": {"up": 1}}}, {"ffn_up"}),
        ({"defaults": {"K": {"up": 1, "attn_q": 2}}}, {"ffn_up", "attn_q"}),
        ({"defaults": {"gating": {"min_mean": {"up": 0.5}}}}, {"ffn_up"}),
        ({"defaults": {"gating": {"min_mean": {"up": 0.5}, "min_p05": 0.1}}}, {"*"}),
        ({"defaults": {"gating": {"metric": "cos_x"}}}, {"*"}),
        ({"defaults": {"gating": {"min_mean": {"up": 0.5}}}, **UP}, {"ffn_up", "attn_q"}),
        ({"defaults": {"K": {"up": 1}}, **UP}, {"ffn_up", "attn_q"}),
        ({"defaults": {"techniques": {"seeded": {"k": {"up": 3}}}}}, {"*"}),
    ],
)
def test_what_a_policy_does_not_name_is_protected(
    tmp_path: Path, policy: dict[str, Any], acts: set[str]
) -> None:
    read_in = read(tmp_path, {"version": 1, **policy})
    plan = make_plan(SITES, choose(TECHNIQUES, {"seeded": {}}), policy=read_in)
    found = {
        site.site.tensor
        for site in plan.sites
        if site.site.id in ("layers.5.ffn_up", "layers.5.attn_q", "output")
        and "seeded" in [choice.technique.name for choice in site.choices]
    }
    assert found == ({"ffn_up", "attn_q", "output"} if acts == {"*"} else acts)


@pytest.mark.parametrize(
    ("policy", "flags", "acts"),
    [
        ({}, {}, {"ffn_up"}),
        ({}, {"target": "all"}, {"ffn_up", "attn_q", "output"}),
        ({"defaults": {"K": {"up": 1, "q": 1}}}, {}, {"ffn_up", "attn_q"}),
        ({"sites": {"output": {"techniques": {"usual": {}}}}}, {}, {"ffn_up", "output"}),
    ],
)
def test_a_technique_takes_its_tensors_and_what_a_policy_names(
    tmp_path: Path, policy: dict[str, Any], flags: dict[str, Any], acts: set[str]
) -> None:
    class Config(SeedConfig):
        target: str = "mlp"

    usual = technique(
        "usual",
        config=Config,
        policy_keys={"K": "k"},
        takes=lambda site, config: config.target == "all" or site.tensor == "ffn_up",
    )
    known = {"usual": usual}
    read_in = read_policy(write(tmp_path, {"version": 1, **policy}), known, SITES)
    plan = make_plan(SITES, choose(known, {"usual": flags}), policy=read_in)
    at = {p.site.id: p for p in plan.sites}
    places = ("layers.5.ffn_up", "layers.5.attn_q", "output")
    assert {at[name].site.tensor for name in places if at[name].choices} == acts


@pytest.mark.parametrize(
    ("policy", "strict"),
    [
        ({}, True),
        ({"defaults": {"gating": {"min_mean": {"up": 0.5}}}}, True),
        ({"defaults": {"gating": {"min_mean": 0.5}}}, False),
    ],
)
def test_the_head_has_its_own_gate(tmp_path: Path, policy: dict[str, Any], strict: bool) -> None:
    found = rules(read(tmp_path, {"version": 1, **policy}), "output")
    assert (found.gate(SEEDED, SiteKind.HEAD) == STRICT) == strict
    assert found.gate(SEEDED, SiteKind.LINEAR) == found.gating
    assert found.gate(TECHNIQUES["base"], SiteKind.HEAD) == found.gating
