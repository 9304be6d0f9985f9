"""What experts cost: all are stored, a token reads the chosen ones."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from gguf.constants import GGMLQuantizationType as Type

from kit import tiny_gguf
from kit.command_line import ok
from kit.mixtures import MIXTURES
from tamiz.api.site import Site, SiteKind
from tamiz.planning import speed
from tamiz.planning.costs import dense_cost, predict, totals
from tamiz.planning.plan import make_plan
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz.survey.survey import Survey, survey
from tamiz.system.machine import MachineSpeed, Profile
from tamiz_ops.formats import find_format

MODEL = tiny_gguf.random_model(**MIXTURES["qwen3moe"])
#: Bytes of the experts of a projection: 34 for 32 weights in Q8_0.
STORED = MODEL.experts * MODEL.expert_ffn * MODEL.hidden // 32 * 34


@pytest.fixture
def found(tmp_path: Path, plugins: Plugins) -> Survey:
    tiny_gguf.write(tmp_path / "tiny.gguf", MODEL, Type.Q8_0)
    return survey(export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins), plugins)


def of_experts(found: Survey) -> list[Site]:
    return [site for site in found.sites if site.kind is SiteKind.EXPERTS]


def test_a_token_reads_the_chosen_experts(found: Survey) -> None:
    sites = of_experts(found)
    tensors = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
    named = {f"layers.{layer}.{tensor}" for layer in range(MODEL.layers) for tensor in tensors}
    assert {site.id for site in sites} == named
    weights = MODEL.experts * MODEL.expert_ffn * MODEL.hidden
    for site in sites:
        assert (site.experts, site.top, site.format) == (MODEL.experts, MODEL.top, "q8_0")
        cost = dense_cost(found, site, 16)
        assert cost.stored == STORED
        assert cost.read == STORED * MODEL.top // MODEL.experts
        assert cost.work == round(find_format("q8_0").work * weights * MODEL.top / MODEL.experts)


def test_a_plan_counts_what_is_read(found: Survey) -> None:
    costs = predict(found, make_plan(found.sites, ()), context=16)
    before, after = totals(found, costs)
    dense = [dense_cost(found, site, 16) for site in of_experts(found)]
    without = sum(cost.stored - cost.read for cost in dense)
    embedding = next(cost.before for cost in costs if cost.plan.site.kind == "embedding")
    cache = sum(cost.before.read for cost in costs if cost.plan.site.kind == "attention")
    assert before == after
    assert before.stored == sum(found.constants.values())
    every = before.stored + embedding.read + cache  # the head has the weight of the embedding
    assert before.read == every - without


def test_the_predicted_speed_counts_them(found: Survey) -> None:
    """1 GB/s, a weight a nanosecond, 1 µs a product, 0.5 µs another node."""
    flat = {"16": 1.0, "256": 1.0}
    rates = MachineSpeed(1, flat, flat, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5)
    costs = predict(found, make_plan(found.sites, ()), context=16)
    (made,) = speed.predict(found, costs, totals(found, costs), Profile({}, (rates,)))
    for site in of_experts(found):
        cost = dense_cost(found, site, 16)
        assert made.sites[site.id] == pytest.approx(1e-9 * math.hypot(cost.read, cost.work) + 1e-6)
    read = sum(seconds > 0 for seconds in made.sites.values())
    whole = sum(made.sites.values()) + 0.5e-6 * (len(found.model.graph) - read)
    assert made.before == pytest.approx(1 / whole, rel=1e-12)


def test_commands_tell_of_experts(tmp_path: Path, found: Survey) -> None:
    folder = found.bundle.path
    line = "experts: 78.3 kB, of which a token reads 39.2 kB"
    assert line in ok("inspect", folder)
    assert line in ok("plan", folder)
    experts = {"bytes": 6 * STORED, "read_per_token": 3 * STORED}
    assert json.loads(ok("inspect", folder, "--json"))["experts"] == experts
    assert json.loads(ok("plan", folder, "--json"))["totals"]["experts"] == experts
