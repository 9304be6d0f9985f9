"""event-driven through build: the graph that comes out, and what its sequences compute."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

import tamiz_ops
from kit.decoding import IDS, PROMPT, built, counted, distance, stages, steps
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import Claim, Fit, Mode, Resource, Technique, TechniqueConfig
from tamiz.calibration.calibrate import calibrate_bundle
from tamiz.cli import main
from tamiz.evaluation.bench_child import BundleEngine
from tamiz.files.bundle import Bundle
from tamiz.interface.metadata import LAYER
from tamiz.planning.choice import Choice
from tamiz.planning.plan import ConflictError, choose, make_plan
from tamiz.plugins import Plugins
from tamiz.runtime.kv_cache import ExactSequence, SharedSequence
from tamiz.runtime.model import Model

pytestmark = pytest.mark.slow

EXACT = {"reference": "last", "select": "topk", "topk": 1.0, "gap_every": 16, "anywhere": True}
HALF = {"select": "topk", "topk": 0.5, "gap_every": 0, "anywhere": True}


@pytest.fixture
def calibration(plugins: Plugins, tiny_dense: Path) -> Path:
    path = tiny_dense.parent / "calibration"
    calibrate_bundle(tiny_dense, path, plugins, windows=2, samples=128)
    return path


def test_the_graph_keeps_states(plugins: Plugins, tiny_dense: Path, calibration: Path) -> None:
    path = built(plugins, tiny_dense, "e", calibration, event_driven={"target": "attn", **HALF})
    bundle = Bundle.open(path)
    model = ir.load(bundle.model)
    # States of equal size lie in one input; a size that one site has is an input of that site.
    names = ("past_layers.event", "past_event.")
    pasts = [value for value in model.graph.inputs if value.name.startswith(names)]
    outputs = {value.name: list(value.shape) for value in model.graph.outputs}
    found: Counter[int] = Counter()
    for past in pasts:
        assert outputs[past.name.replace("past", "present")] == list(past.shape)
        *stacked, _, size = past.shape
        sites = stacked[0] if stacked else 1
        assert isinstance(size, int)
        assert isinstance(sites, int)
        found[size] += sites
    assert found.total() == 2 * len("qkvo")
    assert set(found) <= {3, 64 + 3 + 64, 64 + 3 + 32}
    assert bundle.manifest.kv_cache == "shared"
    assert {node.op_type for node in model.graph if LAYER in node.metadata_props} == {"Fused"}


def test_everything_chosen_is_exact_bit_for_bit_over_500_steps(
    plugins: Plugins, tiny_dense: Path
) -> None:
    exact = Model.load(built(plugins, tiny_dense, "exact"))
    event = Model.load(built(plugins, tiny_dense, "event", event_driven=EXACT))
    for seed in range(3):  # a sequence has room for 256 tokens
        ids = np.random.default_rng(seed).integers(2, 262, 200).tolist()
        np.testing.assert_array_equal(steps(event, ids, 10), steps(exact, ids, 10))
    assert counted(event, "event.disabled") == 0


def test_prompts_are_exact_and_steps_are_near(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    expected = steps(Model.load(built(plugins, tiny_dense, "exact")))
    model = Model.load(
        built(plugins, tiny_dense, "e", calibration, event_driven={**HALF, "topk": 0.9})
    )
    found = steps(model)
    np.testing.assert_array_equal(found[0], expected[0])
    assert 0 < distance(found[1:], expected[1:]) < 0.3
    kept = counted(model, "event.topk_kept") / counted(model, "event.channels")
    assert kept == pytest.approx(0.9, abs=0.02)


def test_both_kv_modes_fused_or_not_are_the_same(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    model = Model.load(built(plugins, tiny_dense, "e", calibration, event_driven=HALF))
    expected = steps(model)
    assert isinstance(model.sequence(), SharedSequence)
    model.shared_cache = False
    assert isinstance(model.sequence(), ExactSequence)
    np.testing.assert_array_equal(steps(model), expected)


def test_sequences_do_not_mix(plugins: Plugins, tiny_dense: Path, calibration: Path) -> None:
    path = built(plugins, tiny_dense, "e", calibration, event_driven=HALF)
    model, other = Model.load(path), Model.load(path)
    texts = [IDS, IDS[::-1]]
    expected = [steps(model, ids) for ids in texts]
    # Two sequences of one session in turn, and one of another session.
    sequences = [model.sequence(len(IDS)), model.sequence(len(IDS)), other.sequence(len(IDS))]
    for sequence, ids in zip(sequences, [*texts, IDS], strict=True):
        sequence.read(ids[:PROMPT])
    for t in range(PROMPT, len(IDS)):
        for i, ids in enumerate([*texts, IDS]):
            np.testing.assert_array_equal(
                sequences[i].step(ids[t]), expected[i % 2][t - PROMPT + 1]
            )


def test_concurrent_runs_do_not_mix(plugins: Plugins, tiny_dense: Path, calibration: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "e", calibration, event_driven=HALF))
    texts = [IDS, IDS[::-1]]
    expected = [steps(model, ids) for ids in texts]
    found: list[Any] = [None, None]

    def work(i: int) -> None:
        found[i] = [steps(model, texts[i]) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine, rows in zip(expected, found, strict=True):
        for again in rows:
            np.testing.assert_array_equal(again, mine)


def test_reset_and_rewind_start_anew(plugins: Plugins, tiny_dense: Path, calibration: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "e", calibration, event_driven=HALF))
    expected = steps(model)
    sequence = model.sequence(1)  # grows on the way
    sequence.read(IDS[:PROMPT])
    for token in IDS[::-1]:
        sequence.step(token)
    sequence.truncate(PROMPT)  # a delta knows no way back
    assert sequence.tokens == []
    rows = [sequence.read(IDS[:PROMPT]).copy()]
    rows += [sequence.step(token).copy() for token in IDS[PROMPT:]]
    np.testing.assert_array_equal(rows, expected)


def test_a_benchmark_decodes_where_the_prompt_ended(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    path = built(plugins, tiny_dense, "e", calibration, event_driven=HALF)
    engine = BundleEngine(Model.load(path, threads=1))
    engine.prefill(IDS[:PROMPT])
    taken = []
    for _ in range(2):
        engine.decode(5)
        taken.append(engine.sequence.tokens.copy())
        engine.rewind(PROMPT)
        assert engine.sequence.tokens == IDS[:PROMPT]
    assert taken[0] == taken[1]
    assert len(taken[0]) == PROMPT + 5


def test_gap_switches_off_for_the_sequence_only(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    exact = steps(Model.load(built(plugins, tiny_dense, "exact")))
    fields = {**HALF, "topk": 0.1, "gap_every": 70, "gap_tol": 1e-6}
    model = Model.load(built(plugins, tiny_dense, "e", calibration, event_driven=fields))
    for _ in range(2):  # the second sequence starts switched on again
        tamiz_ops.reset_metrics(model.session)
        found = steps(model)
        assert counted(model, "event.gap_checks") == counted(model, "event.disabled") == 14
        assert counted(model, "event.enabled") == 14 * (70 - PROMPT + 1)
        # The keys and values of the first steps stay what they were.
        assert distance(found[70 - PROMPT + 2 :], exact[70 - PROMPT + 2 :]) < distance(
            found[1 : 70 - PROMPT], exact[1 : 70 - PROMPT]
        )


def test_budget_is_shared_by_weights(plugins: Plugins, tiny_dense: Path, calibration: Path) -> None:
    fields = {**HALF, "budget_ms": 2.0}
    path = built(plugins, tiny_dense, "e", calibration, event_driven=fields)
    chosen = [stage.attributes for stage in stages(path) if stage.op == "EventSelect"]
    assert sum(a["budget_us"] for a in chosen) == pytest.approx(2000, rel=1e-4)
    per_weight = [a["budget_us"] / (a["k"] * a["n"]) for a in chosen]
    np.testing.assert_allclose(per_weight, per_weight[0], rtol=1e-4)


def test_no_budget_at_all_leaves_the_quorum(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    fields = {**HALF, "topk": 1.0, "budget_ms": 0.0, "quorum": 0.25}
    model = Model.load(built(plugins, tiny_dense, "e", calibration, event_driven=fields))
    assert np.isfinite(steps(model)).all()
    kept = counted(model, "event.topk_kept") / counted(model, "event.channels")
    assert kept == pytest.approx(0.25, abs=0.01)
    assert counted(model, "event.quorum_hits") == counted(model, "event.enabled")
    assert counted(model, "event.budget_ms_used") > 0


def test_a_batch_is_its_sequences(plugins: Plugins, tiny_dense: Path, calibration: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "e", calibration, event_driven=HALF))
    texts = [IDS[:80], IDS[40:]]
    alone = [steps(model, ids) for ids in texts]
    states = {state.past: state.zeros(2) for state in model.states}
    rows = []
    for start, end in [(0, PROMPT), *((t, t + 1) for t in range(PROMPT, 80))]:
        feeds = {"input_ids": np.array([ids[start:end] for ids in texts])}
        feeds["attention_mask"] = np.ones((2, end), np.int64)
        feeds["position_ids"] = np.array([range(start, end)] * 2)
        presents = [state.present for state in model.states]
        logits, *values = model.session.run(["logits", *presents], {**feeds, **states})
        states = {state.past: v for state, v in zip(model.states, values, strict=True)}
        rows.append(logits[:, -1])
    np.testing.assert_allclose(np.array(rows)[:, 0], alone[0], rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.array(rows)[:, 1], alone[1], rtol=0, atol=1e-5)


def test_another_mask_narrows_the_choice(
    plugins: Plugins, tiny_dense: Path, calibration: Path
) -> None:
    if "kwta" not in plugins.techniques():
        pytest.skip("needs kwta")
    kwta = {"k": 0.5, "select": "topk", "target": "attn"}
    fields = {**HALF, "topk": 1.0, "target": "attn"}
    path = built(plugins, tiny_dense, "both", calibration, kwta=kwta, event_driven=fields)
    model = Model.load(path)
    assert np.isfinite(steps(model)).all()
    kept = counted(model, "event.topk_kept") / counted(model, "event.channels")
    assert kept == pytest.approx(0.5, abs=0.01)


# ---- flags and claims ----


def test_flags_reach_the_configuration(tiny_dense: Path, tmp_path: Path) -> None:
    fields = {"target": "mlp", "topk": 0.4, "delta-theta": 0.01, "budget-ms": 4, "quorum": 0.5}
    fields |= {"gap-tol": 0.03, "reference": "zero", "anywhere": "true"}
    flags = ["--event-driven=on", *(f"--event-{name}={value}" for name, value in fields.items())]
    out = tmp_path / "e"
    result = CliRunner().invoke(main, ["build", str(tiny_dense), "-o", str(out), *flags])
    assert result.exit_code == 0, result.output
    config = Bundle.open(out).manifest.techniques["event-driven"]["config"]
    assert (config["target"], config["topk"], config["budget_ms"]) == ("mlp", 0.4, 4)
    values = ir.load(out / "model.onnx").graph.inputs
    events = [v for v in values if v.name.startswith("past_layers.event")]
    assert sum(value.shape[0] for value in events) == 2 * len(("down", "gate", "up"))


def test_without_calibration_sites_stay_and_say_why(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "e", event_driven={"anywhere": True})
    assert "past_event" not in str([v.name for v in ir.load(path / "model.onnx").graph.inputs])
    assert "tamiz calibrate" in (path / "report.json").read_text()


LINEAR = Site("layers.0.attn_q", SiteKind.LINEAR, "q", 0, "attn_q", "w", 64, 64)


def mask_technique(name: str, resource: Resource, mode: Mode) -> Technique:
    return Technique(
        name=name,
        version="1",
        summary="",
        config=TechniqueConfig,
        site_kinds=frozenset({SiteKind.LINEAR}),
        claims=(Claim(resource, mode, block=1),),
        fit=lambda *_: Fit({}, {}, {}, 0.0),
        rewrite=lambda *_: [],
    )


def test_candidates_are_narrowed_before_the_budget(plugins: Plugins) -> None:
    narrowing = mask_technique("narrow", Resource.CANDIDATES, Mode.NARROWING)
    choices = choose(plugins.techniques(), {"event-driven": {}})
    plan = make_plan([LINEAR], [*choices, Choice(narrowing, TechniqueConfig())])
    names = [choice.technique.name for choice in plan.sites[0].choices]
    assert names == ["block-quant", "narrow", "event-driven"]


def test_the_budget_has_one_owner(plugins: Plugins) -> None:
    rival = mask_technique("rival", Resource.BUDGET, Mode.EXCLUSIVE)
    choices = choose(plugins.techniques(), {"event-driven": {}})
    with pytest.raises(ConflictError, match="both claim the budget"):
        make_plan([LINEAR], [*choices, Choice(rival, TechniqueConfig())])


def test_packed_weights_are_needed(plugins: Plugins) -> None:
    choices = choose(plugins.techniques(), {"event-driven": {}, "block-quant": None})
    with pytest.raises(ConflictError, match="requires skippable-blocks"):
        make_plan([LINEAR], choices)
