"""event-attention through build: the graph that comes out, and what its sequences compute."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import tamiz_ops
from tamiz.build import Options, build
from tamiz.plan import ConflictError, choose
from tamiz.plugins import Plugins, load
from tamiz.runtime import Model
from tamiz.sequence import ExactSequence

IDS = np.random.default_rng(0).integers(2, 262, 120).tolist()
FILTER = {"keep": 8, "recent": 8, "density": 1.0}
PROMPT = 60


@pytest.fixture(scope="module")
def plugins() -> Plugins:
    return load()


def built(plugins: Plugins, source: Path, name: str, **techniques: Any) -> Path:
    out = source.parent / name
    wanted = {key.replace("_", "-"): value for key, value in techniques.items()}
    build(source, out, choose(plugins.techniques(), wanted), plugins, Options(max_dppl=None))
    return out


def steps(model: Model, sequence: Any = None) -> np.ndarray:
    """Logits of steps after a prompt."""
    sequence = sequence or model.sequence(len(IDS))
    sequence.read(IDS[:PROMPT])
    return np.array([sequence.step(token).copy() for token in IDS[PROMPT:]])


def counted(model: Model, name: str) -> float:
    return sum(node.get(name, 0.0) for node in tamiz_ops.metrics(model.session).values())


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
    np.testing.assert_array_equal(steps(model), steps(model, ExactSequence(model)))


@pytest.mark.parametrize(
    ("beside", "rule"),
    [({}, "required-capability"), ({"win-attn": {}}, "excluded-capability")],
)
def test_it_needs_a_filter_and_no_window(
    plugins: Plugins, tiny_dense: Path, beside: dict[str, Any], rule: str
) -> None:
    with pytest.raises(ConflictError) as caught:
        built(plugins, tiny_dense, "rest", event_attention={}, **beside)
    assert rule in {conflict.rule for conflict in caught.value.conflicts}
