"""event-attention through build: the graph that comes out, and what its sequences compute."""

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from kit import tiny_gguf
from kit.decoding import IDS, PROMPT, built, counted, distance, steps
from tamiz.files.bundle import Bundle
from tamiz.planning.costs import predict
from tamiz.planning.plan import ConflictError, choose, make_plan
from tamiz.plugins import Plugins
from tamiz.runtime.kv_cache import ExactSequence
from tamiz.runtime.model import Model
from tamiz.survey.export import export
from tamiz.survey.survey import survey

pytestmark = pytest.mark.slow

ATTENTION = "layers.1.attention"
FEW = {"theta": 0.5, "least_keys": 0}


def test_the_graph_keeps_states_and_layers_take_turns(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "rest", event_attention={**FEW, "gap_tol": 100.0})
    inputs = [value.name for value in ir.load(path / "model.onnx").graph.inputs]
    states = [name for name in inputs if name.startswith("past_layers.")]
    assert sorted(states) == ["past_layers.event", "past_layers.sketch"]
    model = Model.load(path)
    steps(model)
    assert counted(model, "event.enabled") == 2 * len(IDS[PROMPT:])
    assert counted(model, "event.gap_checks") > 0
    assert counted(model, "event.topk_kept") < 0.8 * counted(model, "event.channels")


def test_what_weighs_little_costs_little(plugins: Plugins, tiny_dense: Path) -> None:
    exact = steps(Model.load(built(plugins, tiny_dense, "exact")))
    errors = []
    for theta in (1.0, 0.1, 0.0):
        fields = {"theta": theta, "least_keys": 0, "age_max": 8, "gap_tol": 100.0}
        found = steps(Model.load(built(plugins, tiny_dense, "rest", event_attention=fields)))
        errors.append(np.abs(found - exact).max() / np.abs(exact).max())
    assert errors[0] > 3 * errors[1] > 0
    assert errors[2] < 1e-4


def test_with_every_step_anew_it_is_exact_attention(plugins: Plugins, tiny_dense: Path) -> None:
    exact = steps(Model.load(built(plugins, tiny_dense, "exact")))
    anew = {"age_max": 1, "gap_tol": 100.0}
    every = Model.load(built(plugins, tiny_dense, "rest", event_attention={**FEW, **anew}))
    np.testing.assert_allclose(steps(every), exact, rtol=0, atol=1e-4 * np.abs(exact).max())
    assert counted(every, "event.disabled") == 0


def test_a_gap_that_is_too_large_switches_off_until_the_next_sequence(
    plugins: Plugins, tiny_dense: Path
) -> None:
    strict = {"age_max": 4, "gap_tol": 0.0}
    path = built(plugins, tiny_dense, "rest", event_attention={**FEW, **strict})
    model = Model.load(path)
    for sequences in (1, 2):
        steps(model)
        assert counted(model, "event.disabled") == 2 * sequences
        assert counted(model, "event.gap_checks") == 2 * sequences


def test_both_ways_to_keep_the_state_agree(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "rest", event_attention={**FEW, "age_max": 4})
    model = Model.load(path)
    decoder: Any = model  # has the attributes of a Decoder
    np.testing.assert_array_equal(steps(model), steps(model, sequence=ExactSequence(decoder)))


def test_sequences_and_concurrent_runs_do_not_mix(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "rest", event_attention={**FEW, "age_max": 4})
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
    path = built(plugins, tiny_dense, "rest", event_attention={**FEW, "age_max": 4})
    model = Model.load(path)
    expected = steps(model)
    sequence = model.sequence(1)  # grows on the way
    steps(model, IDS[::-1], sequence=sequence)
    sequence.truncate(PROMPT)
    assert sequence.tokens == []
    np.testing.assert_array_equal(steps(model, sequence=sequence), expected)


def test_it_stands_beside_no_window(plugins: Plugins, tiny_dense: Path) -> None:
    with pytest.raises(ConflictError) as caught:
        built(plugins, tiny_dense, "rest", event_attention={}, window_attention={})
    assert {conflict.rule for conflict in caught.value.conflicts} == {"excluded-capability"}


def test_it_shares_keys_with_no_filter(plugins: Plugins, tiny_dense: Path) -> None:
    with pytest.raises(ConflictError) as caught:
        built(plugins, tiny_dense, "rest", event_attention={}, state_pack={})
    assert {conflict.rule for conflict in caught.value.conflicts} == {"one-owner"}


@pytest.mark.parametrize("beside", [{}, {"kv-int8": {}}])
def test_the_plan_tells_what_states_take(
    plugins: Plugins, tiny_dense: Path, beside: dict[str, Any]
) -> None:
    """Where every key weighs enough, all of them are read and what is known of them."""
    start = 200
    fields = {"theta": 0.0, "least_keys": 0}
    model = Model.load(built(plugins, tiny_dense, "rest", event_attention=fields, **beside))
    sizes = [math.prod(size or start for size in s.sizes) * 4 for s in model.states]
    expected = sum(sizes) / 2  # layers

    found = survey(Bundle.open(tiny_dense), plugins)
    plan = make_plan(
        found.sites, choose(plugins.techniques(), {"event-attention": fields, **beside})
    )
    costs = {p.plan.site.id: p.after for p in predict(found, plan, start)}
    assert costs["layers.0.attention"].read == pytest.approx(expected, rel=1e-3)


def test_the_plan_reads_less_the_more_a_key_must_weigh(plugins: Plugins, tiny_dense: Path) -> None:
    found = survey(Bundle.open(tiny_dense), plugins)

    def cost(context: int, **fields: Any) -> tuple[int, int]:
        wanted = choose(plugins.techniques(), {"event-attention": fields})
        plan = make_plan(found.sites, wanted)
        (there,) = (p for p in predict(found, plan, context) if p.plan.site.id == ATTENTION)
        return there.before.read, there.after.read

    dense, planned = cost(511)
    assert planned == dense
    dense, planned = cost(512)
    assert planned < 0.55 * dense
    assert cost(512, theta=0.1)[1] < planned


def test_a_layer_with_a_window_of_the_model_is_refused(plugins: Plugins, tmp_path: Path) -> None:
    model = tiny_gguf.random_model(architecture="gemma3", layers=6, window=8)
    tiny_gguf.write(tmp_path / "model.gguf", model)
    dense = export(str(tmp_path / "model.gguf"), tmp_path / "dense", plugins).path
    path = built(plugins, dense, "windows", event_attention=FEW)
    report = json.loads((path / "report.json").read_text())
    reasons = {
        site: fitted["decision"]["reason"]
        for site, entry in report["sites"].items()
        for fitted in entry["techniques"]
        if fitted["name"] == "event-attention"
    }
    assert reasons.pop("layers.5.attention") == "passed the gate"
    assert len(reasons) == 5
    expected = "refused: the model has a window of 8 keys there, expected none"
    assert set(reasons.values()) == {expected}
