"""Techniques that a run does without, in tamiz' runtime and in a bare session."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import tamiz_ops
from kit.composed import needs
from kit.decoding import IDS, PROMPT, built, steps
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.files.errors import TamizError
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins
from tamiz.runtime.model import Model

WINDOW = {"tokens": 16, "sinks": 2}
FILTER = {"keep": 8, "recent": 8, "density": 1.0}
EVENTS = {"theta": 0.5, "least_keys": 0, "age_max": 4, "gap_tol": 10.0}


@pytest.fixture
def make(plugins: Plugins, tiny_dense: Path) -> Callable[..., Path]:
    """Builds the tiny model with some techniques."""

    def make(name: str, **techniques: Any) -> Path:
        needs(*(key.replace("_", "-") for key in techniques))
        return built(plugins, tiny_dense, name, **techniques)

    return make


def test_several_techniques_are_switched_off_one_by_one(make: Callable[..., Path]) -> None:
    both = make("both", window_attention=WINDOW, state_pack=FILTER)
    for off, rest in [
        (["state-pack"], {"window_attention": WINDOW}),
        (["state-pack", "window-attention"], {}),
    ]:
        expected = steps(Model.load(make("rest", **rest), threads=1))
        np.testing.assert_array_equal(steps(Model.load(both, 1, off)), expected)


@pytest.mark.parametrize(
    "technique", [{"state_pack": FILTER}, {"event_attention": EVENTS}, {"window_attention": WINDOW}]
)
def test_drafted_positions_are_run_again_with_exact_keys(
    make: Callable[..., Path], technique: dict[str, Any]
) -> None:
    """Steps with the technique, then one run without it over the positions that they have read."""
    model = Model.load(make("built", **technique), threads=1)
    exact = Model.load(make("plain"), threads=1).sequence(len(IDS))
    sequence = model.sequence(len(IDS))
    sequence.switch_off(model.switches)
    for each in (exact, sequence):
        each.logits(IDS[:PROMPT])
    for first in range(PROMPT, PROMPT + 9, 3):
        drafted = IDS[first : first + 3]
        sequence.switch_off(())
        for token in drafted:
            sequence.step(token)
        sequence.switch_off(model.switches)
        sequence.truncate(first)
        if not sequence.tokens:  # state of fixed size was forgotten
            exact.truncate(0)
            for each in (exact, sequence):
                each.logits(IDS[:first])
        np.testing.assert_array_equal(sequence.logits(drafted), exact.logits(drafted))
    fresh = model.sequence(len(IDS))
    fresh.switch_off(model.switches)
    fresh.logits(IDS[: PROMPT + 9])
    rows = []
    for each in (fresh, sequence):
        each.switch_off(())
        rows.append(each.step(IDS[PROMPT + 9]).copy())
    np.testing.assert_allclose(rows[0], rows[1], rtol=0, atol=1e-3)


def test_state_of_events_outlasts_a_run_without_them(make: Callable[..., Path]) -> None:
    model = Model.load(make("events", event_attention=EVENTS), threads=1)
    sequence = model.sequence(len(IDS))
    sequence.read(IDS[:PROMPT])
    for token in IDS[PROMPT : PROMPT + 6]:
        sequence.step(token)
    tamiz_ops.reset_metrics(model.session)
    sequence.switch_off(model.switches)
    sequence.step(IDS[PROMPT + 6])
    sequence.switch_off(())
    for token in IDS[PROMPT + 7 : PROMPT + 13]:
        sequence.step(token)
    kept = [node for node in tamiz_ops.metrics(model.session).values() if "event.enabled" in node]
    assert all(node["event.enabled"] == 6 for node in kept)
    assert all(node["event.topk_kept"] < node["event.channels"] for node in kept)


def test_a_bare_session_takes_the_switch_as_an_optional_input(make: Callable[..., Path]) -> None:
    path, plain = make("windows", window_attention=WINDOW), make("plain")
    sessions = []
    for bundle in (path, plain):
        options = ort.SessionOptions()
        tamiz_ops.register(options)
        sessions.append(ort.InferenceSession(bundle / "model.onnx", options))
    names = {value.name for value in sessions[0].get_inputs()}
    assert names == {value.name for value in sessions[1].get_inputs()}
    ids = np.array([IDS[:40]])
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    feeds["position_ids"] = np.arange(ids.size)[None]
    for value in sessions[0].get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    on = sessions[0].run(["logits"], feeds)[0]
    off = sessions[0].run(["logits"], {**feeds, "without.window-attention": np.array([1])})[0]
    expected = sessions[1].run(["logits"], feeds)[0]
    np.testing.assert_array_equal(off, expected)
    assert not np.array_equal(on, expected)


def test_a_sequence_that_grows_keeps_its_switches(make: Callable[..., Path]) -> None:
    model = Model.load(
        make("windows", window_attention=WINDOW), threads=1, without=["window-attention"]
    )
    expected = steps(Model.load(make("plain"), threads=1))
    np.testing.assert_array_equal(steps(model, sequence=model.sequence(PROMPT)), expected)
    ids = np.array([IDS[:40]])
    np.testing.assert_array_equal(
        model.logits(ids), Model.load(make("plain"), threads=1).logits(ids)
    )


def test_seed_delta_is_switched_off_where_dense_weights_are_kept(
    plugins: Plugins, tiny_dense: Path
) -> None:
    needs("seed-delta")
    policy, choices = (
        tiny_dense.parent / "policy.json",
        choose(plugins.techniques(), {"seed-delta": {"k": 8}, "block-quant": None}),
    )
    policy.write_text('{"version": 1, "defaults": {"gating": {"min_mean": -1}, "strip": false}}')
    out = tiny_dense.parent / "kept"
    build(tiny_dense, out, choices, plugins, Options(policy=policy, max_dppl=None))
    expected = steps(Model.load(tiny_dense, threads=1))
    np.testing.assert_allclose(
        steps(Model.load(out, threads=1, without=["seed-delta"])), expected, rtol=0, atol=1e-4
    )
    assert np.abs(steps(Model.load(out, threads=1)) - expected).max() > 0.1


def test_what_cannot_be_switched_off_is_refused(make: Callable[..., Path]) -> None:
    path = make("windows", window_attention=WINDOW)
    with pytest.raises(TamizError, match="does not use it; did you mean 'window-attention'"):
        Model.load(path, without=["win-atn"])
    with pytest.raises(
        TamizError, match=r"stores nothing else to compute with; .* window-attention"
    ):
        Model.load(path, without=["block-quant"])
