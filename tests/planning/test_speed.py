import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import pytest
from click.testing import CliRunner

from tamiz.api.attention import filtered_cost
from tamiz.api.cost import Access, Cost
from tamiz.api.site import SiteKind
from tamiz.cli import main
from tamiz.evaluation import measure_machine
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning import speed
from tamiz.planning.costs import acting_context, predict, totals
from tamiz.planning.plan import choose, make_plan
from tamiz.plugins import Plugins
from tamiz.survey.export import export
from tamiz.survey.survey import Survey, survey
from tamiz.system import machine
from tamiz.system.machine import MachineSpeed, Profile
from tamiz.testing.tiny_llama import write_tiny_llama
from tamiz_ops.formats import find_format

#: 1 GB/s at any working set and half of it line by line, a weight and a byte of the cache a
#: nanosecond, 4 a byte of chosen keys, 1 µs a product, 2 an attention, 0.5 another node.
UNITS = MachineSpeed(
    2, {"16": 1.0, "256": 1.0}, {"16": 0.5, "256": 0.5}, 1.0, 1.0, 0.25, 1.0, 2.0, 0.5
)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tamiz" / "machine.json"


def profile(**changes: Any) -> Profile:
    return Profile({**machine.identity(), **changes}, (UNITS,))


def predicted(
    found: Survey, plugins: Plugins, context: int = 128, **wanted: Any
) -> tuple[speed.SpeedPrediction, dict[str, Cost]]:
    plan = make_plan(found.sites, choose(plugins.techniques(), wanted))
    costs = predict(found, plan, context)
    (made,) = speed.predict(found, costs, totals(found, costs), profile())
    return made, {p.plan.site.id: p.after for p in costs}


def test_a_step_is_the_sum_of_its_sites(plugins: Plugins, tiny_dense: Path) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    made, costs = predicted(found, plugins)
    kinds = {site.id: site.kind for site in found.sites}
    for name, seconds in made.sites.items():
        cost = costs[name]
        attends = kinds[name] is SiteKind.ATTENTION
        beside = 2e-6 if attends else 1e-6
        spent = (max if attends else math.hypot)(cost.read, cost.work)
        expected = 1e-9 * spent + beside if cost.read else 0
        assert seconds == pytest.approx(expected, rel=1e-12)
    quiet = len(found.model.graph) - sum(seconds > 0 for seconds in made.sites.values())
    whole = sum(made.sites.values()) + quiet * 0.5e-6
    assert made.after == pytest.approx(1 / whole, rel=1e-12)
    assert made.before < made.after


def test_lines_with_gaps_take_longer(plugins: Plugins, tiny_dense: Path) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    made, costs = predicted(found, plugins, kwta={"k": 0.5})
    cost = costs["layers.0.ffn_down"]
    plain = predicted(found, plugins)[1]["layers.0.ffn_down"].read
    lines = cost.part(Access.RECORDS).read
    assert lines == round(0.8 * plain / 2)  # of what is kept all but the scales
    [scores] = [4 * s.in_features for s in found.sites if s.id == "layers.0.ffn_down"]
    assert cost.read == round(0.2 * plain) + lines + scores
    expected = 1e-9 * math.hypot(cost.read + lines, cost.work) + 1e-6
    assert made.sites["layers.0.ffn_down"] == pytest.approx(expected, rel=1e-9)


def test_the_context_costs_what_attention_reads(plugins: Plugins, tiny_dense: Path) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    kv = 2 * 2 * 16 * 4  # key and value, KV heads, head size, float32
    for context in (1, 100):
        _, costs = predicted(found, plugins, context)
        attention = [s.id for s in found.sites if s.kind is SiteKind.ATTENTION]
        assert {costs[name].read for name in attention} == {context * kv}


def test_techniques_act_on_the_cost_that_those_before_them_left(
    plugins: Plugins, tiny_dense: Path
) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    kv = 2 * 2 * 16 * 4
    window = {"window-attention": {"tokens": 60, "sinks": 4}}
    _, costs = predicted(found, plugins, 200, **window)
    assert costs["layers.1.attention"].read == 64 * kv
    sparse = {"key-filter": {"keep": 12}}  # and 64 recent ones and 4 sinks
    _, costs = predicted(found, plugins, 200, **sparse)
    sketch = 2 * (2 * 2 + 1) * 4  # KV heads, two planes of two words and a size
    assert costs["layers.1.attention"].read == 80 * kv + (200 - 68) * sketch
    _, costs = predicted(found, plugins, 200, **{"window-attention": {"tokens": 156}, **sparse})
    assert costs["layers.1.attention"].read == 80 * kv + (160 - 68) * sketch


def test_keys_are_chosen_before_they_are_read(plugins: Plugins, tiny_dense: Path) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    name = "layers.1.attention"
    made, costs = predicted(found, plugins, 4000, **{"key-filter": {"keep": 12}})
    cost, index = costs[name], costs[name].part(Access.INDEX)
    rows = cost.read - index.read
    assert cost.part(Access.RECORDS).read == rows > cost.work == 0
    assert index.work > index.read > 0
    expected = 1e-9 * (4 * rows + index.work) + 2e-6
    assert made.sites[name] == pytest.approx(expected, rel=1e-12)


def test_bytes_of_keys_are_read_while_others_are_multiplied(
    plugins: Plugins, tiny_dense: Path
) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    name = "layers.1.attention"
    whole = predicted(found, plugins, 1000)[1][name]
    made, costs = predicted(found, plugins, 1000, **{"kv-int8": {}})
    cost = costs[name]
    assert cost.read == whole.read * 5 // 16  # of 16 floats five
    assert cost.work > whole.read > cost.read
    assert made.sites[name] == pytest.approx(1e-9 * cost.work + 2e-6, rel=1e-12)
    both = predicted(found, plugins, 1000, **{"kv-int8": {}, "key-filter": {"keep": 12}})[1][name]
    alone = predicted(found, plugins, 1000, **{"key-filter": {"keep": 12}})[1][name]
    index = both.part(Access.INDEX)
    assert index == alone.part(Access.INDEX)
    rows = both.part(Access.RECORDS).read
    assert rows == both.read - index.read == round(alone.part(Access.RECORDS).read * 5 / 16)


def test_a_filter_does_nothing_for_an_attention_that_was_not_recognised() -> None:
    cost = Cost(0, 6400)
    assert filtered_cost(cost, head_size=0, keys=200, keep=12, planes=1) == cost


def test_reading_slows_down_with_the_working_set() -> None:
    made = dataclasses.replace(UNITS, read_gb_s={"10": 40.0, "1000": 20.0})
    rates = [made.read_rate(n) for n in (1, 10_000_000, 100_000_000, 10**9, 10**12)]
    assert rates == pytest.approx([40e9, 40e9, 30e9, 20e9, 20e9], rel=1e-9)


def test_a_profile_is_kept_for_this_machine_only(cache: Path) -> None:
    assert machine.load() is None
    assert machine.save(profile()) == cache
    assert machine.load() == profile()
    machine.save(profile(tamiz_ops="another version"))
    assert machine.load() is None
    cache.write_text("{}")
    assert machine.load() is None


IMPOSSIBLE: list[dict[str, Any]] = [
    {"read_gb_s": {"16": 1114112.0, "256": 1.0}},
    {"records_gb_s": {"16": 1.0, "256": 0.0}},
    {"products_g_s": float("inf")},
    {"attention_gb_s": float("nan")},
    {"chosen_gb_s": -1.0},
    {"product_us": 1e9},
    {"node_us": -1.0},
]


@pytest.mark.parametrize("change", IMPOSSIBLE)
def test_an_impossible_profile_is_none(cache: Path, change: dict[str, Any]) -> None:
    wrong = Profile(machine.identity(), (UNITS, dataclasses.replace(UNITS, **change)))
    assert next(iter(change)) in (wrong.impossible() or "")
    cache.parent.mkdir(parents=True)
    cache.write_text(json.dumps(dataclasses.asdict(wrong)))
    assert machine.load() is None


def test_a_machine_that_gives_impossible_numbers_is_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fast = dataclasses.replace(UNITS, read_gb_s={"16": 1114112.0})
    answers = [fast] * 2
    monkeypatch.setattr(machine, "cores", lambda: 1)
    monkeypatch.setattr(measure_machine, "cores", lambda: 1)
    monkeypatch.setattr(measure_machine, "WORKING_SETS", (2,))
    monkeypatch.setattr(
        measure_machine, "_speed", lambda *_: (answers.pop(), 0.1) if answers else (UNITS, 0.2)
    )
    made = measure_machine.measure()
    assert (made.speeds, made.spread) == ((UNITS,), 0.2)
    assert made.load >= 0
    answers += [fast] * 3
    with pytest.raises(TamizError, match=r"read_gb_s at 16 MB is 1.11411e.06 .* try again while"):
        measure_machine.measure()


def test_measuring_gives_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_machine, "WORKING_SETS", (2, 4))
    monkeypatch.setattr(measure_machine, "_WARM_UP", 0.0)
    monkeypatch.setattr(measure_machine, "_MEASURE", 0.0)
    monkeypatch.setattr(measure_machine, "_ROUNDS", 1)
    # Rounds of no length on a machine that does other work may give anything.
    monkeypatch.setattr(Profile, "impossible", lambda _: None)
    made = measure_machine.measure()
    assert made.speeds[0].threads == 1
    for found in made.speeds:
        assert list(found.read_gb_s) == ["2", "4"]
        assert list(found.records_gb_s) == ["2", "4"]
        rates = (*found.read_gb_s.values(), *found.records_gb_s.values())
        assert min(*rates, found.products_g_s, found.attention_gb_s, found.chosen_gb_s) > 0
        assert min(found.attention_us, found.node_us) > 0 <= found.product_us
    assert made.machine == machine.identity()
    assert made.spread >= 0


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q5_1"])
def test_a_weight_as_stored_takes_the_time_of_its_format(
    kind: str, tmp_path: Path, plugins: Plugins
) -> None:
    write_tiny_llama(tmp_path / "tiny.gguf", gguf.GGMLQuantizationType[kind])
    found = survey(export(str(tmp_path / "tiny.gguf"), tmp_path / "dense", plugins), plugins)
    wanted = {"block-quant": {"format": kind.lower()}}
    plan = make_plan(found.sites, choose(plugins.techniques(), wanted))
    costs = {p.plan.site.id: (p.before, p.after) for p in predict(found, plan, 1)}
    before, after = costs["layers.0.ffn_down"]
    assert before.work == after.work == round(find_format(kind.lower()).work * 64 * 96)
    assert before.read == after.read
    assert costs["tok_embd"][0].work == 0


def test_rounds_go_on_until_the_reading_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_machine, "WORKING_SETS", (2,))
    given = iter([1.0, 2.0, 1.0, 1.1, 3.0])
    monkeypatch.setattr(measure_machine, "_runs", lambda *_: [next(given)])
    graphs: Any = {"read 2": SimpleNamespace(steps=1)}
    # Without the fastest and the slowest of four rounds, the others differ by a tenth.
    assert measure_machine._seconds(graphs, {}) == {"read 2": [1.0, 2.0, 1.0, 1.1]}
    given = iter([1.0, 2.0] * 10)
    assert len(measure_machine._seconds(graphs, {})["read 2"]) == 12


def test_plan_tells_speed_where_there_is_a_profile(cache: Path, tiny_dense: Path) -> None:
    def plan(*flags: str) -> str:
        result = CliRunner().invoke(main, ["plan", str(tiny_dense), *flags])
        assert result.exit_code == 0, result.output
        return result.stdout

    assert "run 'tamiz doctor --profile'" in plan()
    assert json.loads(plan("--json"))["totals"]["decode_tok_s"] == {}
    machine.save(profile())
    text = plan()
    assert "predicted decode, 2 threads: " in text
    assert max(map(len, text.splitlines())) <= 100
    found = json.loads(plan("--json", "--context", "200"))
    assert found["context"] == 200
    assert set(found["totals"]["decode_tok_s"]["2"]) == {"before", "after"}
    sites = {site["site"]: site for site in found["sites"]}
    # 64 × 64 weights are multiplied while their 2,560 bytes are read
    expected = round(math.hypot(64 * 64, 2560) / 1e3 + 1, 3)
    assert sites["layers.0.attn_q"]["microseconds"] == {"2": expected}


def test_doctor_measures_the_profile(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure_machine, "measure", profile)
    found = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)["checks"]["profile"]
    assert "not measured" in found["found"]
    found = json.loads(CliRunner().invoke(main, ["doctor", "--profile", "--json"]).stdout)
    assert "2 threads: reads 1 GB/s" in found["checks"]["profile"]["found"]
    assert cache.exists()


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, 1024),  # no technique: nothing rests
        ({"kv-int8": {}}, 1024),  # acts at any length
        ({"state-pack": {}}, 2048),  # early layers attend to all keys up to 1,760
        ({"state-pack": {}, "kv-int8": {}}, 2048),
        ({"window-attention": {"tokens": 3000}}, 4096),
    ],
)
def test_the_context_in_which_techniques_act(
    plugins: Plugins, tiny_dense: Path, wanted: dict[str, Any], expected: int
) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    plans = make_plan(found.sites, choose(plugins.techniques(), wanted)).sites
    assert acting_context(found, plans, 1024, 32768) == expected
    assert acting_context(found, plans, 1024, 1500) == min(expected, 1500)
    assert acting_context(found, plans, 1024, 800) == 800
