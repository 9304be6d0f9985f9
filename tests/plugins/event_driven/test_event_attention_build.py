"""event-attention through build: the graph that comes out, and what its sequences compute."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from decoding import IDS, PROMPT, built, counted, distance, steps

import tamiz_ops
from tamiz.bundle import Bundle
from tamiz.inspect import survey
from tamiz.plan import ConflictError, choose, make_plan, predict
from tamiz.plugins import Plugins, load
from tamiz.runtime import Model
from tamiz.sequence import ExactSequence

LONG = np.random.default_rng(1).integers(2, 262, 240).tolist()
ATTENTION, KV_HEADS = "layers.1.attention", 2
FILTER = {"keep": 8, "recent": 8, "density": 1.0}


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load()


def test_the_graph_keeps_a_state_and_layers_take_turns(plugins: Plugins, tiny_dense: Path) -> None:
    fields = {"gap_tol": 100.0}
    path = built(plugins, tiny_dense, "rest", state_pack=FILTER, event_attention=fields)
    inputs = {value.name: value for value in ir.load(path / "model.onnx").graph.inputs}
    states = [name for name in inputs if "past_event" in name]
    assert states == ["past_event.0.attention", "past_event.1.attention"]
    model = Model.load(path)
    steps(model)
    assert counted(model, "event.enabled") == 2 * len(IDS[PROMPT:])
    assert counted(model, "event.gap_checks") > 0


def test_the_filter_before_it_chooses_as_it_does_alone(plugins: Plugins, tiny_dense: Path) -> None:
    """Sketches are of keys less their mean, which other state of the layer must not displace."""
    means = []
    for name, beside in (("filter", {}), ("rest", {"event_attention": {}})):
        path = built(plugins, tiny_dense, name, state_pack=FILTER, **beside)
        constants = ir.load(path / "model.onnx").graph.initializers
        means.append({n: v.const_value.numpy() for n, v in constants.items() if "key_mean" in n})
    alone, behind = means
    assert len(alone) == 2
    assert behind.keys() == alone.keys()
    for name, mean in alone.items():
        np.testing.assert_array_equal(behind[name], mean)


def test_with_every_step_anew_it_is_exact_attention(plugins: Plugins, tiny_dense: Path) -> None:
    exact = steps(Model.load(built(plugins, tiny_dense, "exact")))
    anew = {"age_max": 1, "gap_tol": 100.0}
    every = Model.load(built(plugins, tiny_dense, "rest", state_pack=FILTER, event_attention=anew))
    np.testing.assert_allclose(steps(every), exact, rtol=0, atol=1e-4 * np.abs(exact).max())
    assert counted(every, "event.disabled") == 0


def test_a_gap_that_is_too_large_switches_off_until_the_next_sequence(
    plugins: Plugins, tiny_dense: Path
) -> None:
    strict = {"age_max": 4, "gap_tol": 0.0}
    path = built(plugins, tiny_dense, "rest", state_pack=FILTER, event_attention=strict)
    model = Model.load(path)
    for sequences in (1, 2):
        steps(model)
        assert counted(model, "event.disabled") == 2 * sequences
        assert counted(model, "event.gap_checks") == 2 * sequences


def test_both_ways_to_keep_the_state_agree(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "rest", state_pack=FILTER, event_attention={"age_max": 4})
    model = Model.load(path)
    np.testing.assert_array_equal(steps(model), steps(model, sequence=ExactSequence(model)))


def test_sequences_and_concurrent_runs_do_not_mix(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "rest", state_pack=FILTER, event_attention={"age_max": 4})
    model, other = Model.load(path), Model.load(path)
    texts = [IDS, IDS[::-1]]
    expected = [steps(model, ids) for ids in texts]
    assert distance(expected[1], expected[0]) > 0.1

    readers = [(model, 0), (model, 1), (other, 0)]  # two sequences of a session, one of another
    sequences = [each.sequence(len(IDS)) for each, _ in readers]
    for sequence, (_, text) in zip(sequences, readers, strict=True):
        sequence.read(texts[text][:PROMPT])
    for t in range(PROMPT, len(IDS)):
        for sequence, (_, text) in zip(sequences, readers, strict=True):
            logits = sequence.step(texts[text][t])
            np.testing.assert_array_equal(logits, expected[text][t - PROMPT + 1])

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda ids: steps(model, ids), texts * 3))
    for rows, mine in zip(found, expected * 3, strict=True):
        np.testing.assert_array_equal(rows, mine)


def test_a_sequence_that_is_cut_starts_anew(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "rest", state_pack=FILTER, event_attention={"age_max": 4})
    model = Model.load(path)
    expected = steps(model)
    sequence = model.sequence(1)  # grows on the way
    steps(model, IDS[::-1], sequence=sequence)
    sequence.truncate(PROMPT)
    assert sequence.tokens == []
    np.testing.assert_array_equal(steps(model, sequence=sequence), expected)


def test_it_stands_beside_no_window(plugins: Plugins, tiny_dense: Path) -> None:
    with pytest.raises(ConflictError) as caught:
        built(plugins, tiny_dense, "rest", event_attention={}, win_attn={})
    assert {conflict.rule for conflict in caught.value.conflicts} == {"excluded-capability"}


def test_alone_it_brings_a_filter(plugins: Plugins, tiny_dense: Path) -> None:
    fields = {"age_max": 4, "gap_tol": 100.0}
    own = built(plugins, tiny_dense, "own", event_attention={"keep": 8, **fields})
    filter_ = {"keep": 8, "density": 0.5}
    other = built(plugins, tiny_dense, "other", state_pack=filter_, event_attention=fields)
    models = [Model.load(path) for path in (own, other)]
    own_logits, other_logits = (steps(model, LONG, len(LONG) - 30) for model in models)
    np.testing.assert_array_equal(own_logits, other_logits)
    assert counted(models[0], "event.enabled") == 2 * 30


def test_the_keys_of_another_filter_are_its_own(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "both", state_pack=FILTER, event_attention={"keep": 4})
    report = json.loads((path / "report.json").read_text("utf-8"))
    assert "another technique chooses its keys" in json.dumps(report)
    assert not any("past_event" in v.name for v in ir.load(path / "model.onnx").graph.inputs)


@pytest.mark.parametrize("beside", [{}, {"kv-int8": {}}, {"state-pack": FILTER}])
def test_the_plan_tells_what_steps_read(
    plugins: Plugins, tiny_dense: Path, beside: dict[str, Any]
) -> None:
    """Keys are those that were counted, and states have the size that they have in the graph."""
    age, start = 4, 200
    fields = {"age_max": age, "gap_tol": 100.0} | ({} if "state-pack" in beside else {"keep": 8})
    path = built(plugins, tiny_dense, "rest", event_attention=fields, **beside)
    model = Model.load(path)
    sequence = model.sequence(len(LONG))
    sequence.read(LONG[:start])
    sequence.step(LONG[start])  # knows nothing of a rest yet
    tamiz_ops.reset_metrics(model.session)
    for token in LONG[start + 1 : start + 1 + age]:
        sequence.step(token)
    sizes = {s.past: math.prod(size or start for size in s.sizes) * 4 for s in model.states}
    row = (sizes["past_key_values.0.key"] + sizes["past_key_values.0.value"]) / start / KV_HEADS
    recent = beside.get("state-pack", {"recent": 64})["recent"] + 4
    known = sizes["past_sketch.0"] * (1 - recent / start) + sizes["past_event.0.attention"]
    expected = counted(model, "event.topk_kept") / age / 2 * row + known

    found = survey(Bundle.open(tiny_dense), plugins)
    wanted = {"event-attention": fields, **beside}
    plan = make_plan(found.sites, choose(plugins.techniques(), wanted))
    costs = {p.plan.site.id: p.after for p in predict(found, plan, start)}
    assert costs["layers.0.attention"].read == pytest.approx(expected, rel=0.02)


def test_the_plan_reads_everything_where_the_filter_rests(
    plugins: Plugins, tiny_dense: Path
) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)
    plan = make_plan(found.sites, choose(plugins.techniques(), {"event-attention": {}}))

    def cost(context: int) -> tuple[int, int]:
        (found_there,) = (p for p in predict(found, plan, context) if p.plan.site.id == ATTENTION)
        return found_there.before.read, found_there.after.read

    dense, planned = cost(1223)  # half of it is less than 544 + 64 + 4
    assert planned == dense
    dense, planned = cost(1224)
    assert planned < 0.65 * dense
