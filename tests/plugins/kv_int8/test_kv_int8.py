"""kv-int8 through build: the cache of the graph, and what sequences of either kind compute."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner

from kit.decoding import IDS, built, distance, steps
from tamiz.api.cost import Access, Cost, Part
from tamiz.api.site import Site, SiteKind
from tamiz.api.technique import FitError
from tamiz.cli import main
from tamiz.files.bundle import Bundle
from tamiz.planning.costs import predict
from tamiz.planning.plan import choose, make_plan
from tamiz.plugins import Plugins
from tamiz.runtime.kv_cache import ExactSequence, SharedSequence
from tamiz.runtime.model import Model
from tamiz_kv_int8.plugin import KV_INT8

CONFIG = KV_INT8.config()


def test_the_cache_is_a_quarter_and_the_logits_are_close(
    plugins: Plugins, tiny_dense: Path
) -> None:
    model = Model.load(built(plugins, tiny_dense, "bytes", kv_int8={}))
    exact = Model.load(built(plugins, tiny_dense, "exact"))
    (size,) = {state.sizes[-1] for state in exact.states}
    assert {state.sizes[-1] for state in model.states} == {size // 4 + 1}
    assert 0 < distance(steps(model), steps(exact)) < 0.02


def test_steps_and_runs_of_any_length_agree(plugins: Plugins, tiny_dense: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "bytes", kv_int8={}))
    expected = model.logits(np.array([IDS]))[0]
    for start in (1, 60, 119):
        np.testing.assert_allclose(
            steps(model, start=start), expected[start - 1 :], rtol=0, atol=1e-3
        )


def test_a_cache_of_exact_length_and_a_shared_one_agree(plugins: Plugins, tiny_dense: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "bytes", kv_int8={}))
    found = []
    decoder: Any = model  # has the attributes of a Decoder
    for sequence in (SharedSequence(decoder, 8), ExactSequence(decoder)):
        sequence.read(IDS[:70])
        sequence.truncate(50)
        found.append([sequence.step(token).copy() for token in IDS[50:]])
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], steps(model, start=50)[1:], rtol=0, atol=1e-3)


def test_padding_of_whole_blocks_changes_nothing(plugins: Plugins, tiny_dense: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "bytes", kv_int8={}))
    found, alone = behind_padding(model, 64), model.logits(np.array([IDS[:80]]))[0]
    np.testing.assert_allclose(found, alone, rtol=0, atol=1e-3)
    assert np.median(np.abs(found - alone)) < 1e-6


@pytest.mark.parametrize("padding", [8, 40])
def test_other_padding_rounds_otherwise_and_not_worse(
    plugins: Plugins, tiny_dense: Path, padding: int
) -> None:
    """A weight is rounded in steps of the largest weight among the 64 keys of its block."""
    model = Model.load(built(plugins, tiny_dense, "bytes", kv_int8={}))
    exact = Model.load(built(plugins, tiny_dense, "exact")).logits(np.array([IDS[:80]]))[0]
    found, alone = behind_padding(model, padding), model.logits(np.array([IDS[:80]]))[0]
    assert distance(found, exact) < 1.1 * distance(alone, exact)
    assert distance(found, alone) < distance(alone, exact) / 2


def behind_padding(model: Model, padding: int) -> np.ndarray:
    """The logits of 80 tokens that stand behind padding, in a batch with a row that has none."""
    size = padding + 80
    mask = np.array([[1] * size, [0] * padding + [1] * 80])
    ids = np.array([(IDS + IDS)[:size], [0] * padding + IDS[:80]])
    return model.logits(ids, mask)[1, padding:]


def test_channels_are_rounded_by_their_own_sizes(plugins: Plugins, tiny_dense: Path) -> None:
    path = built(plugins, tiny_dense, "bytes", kv_int8={})
    constants = ir.load(path / "model.onnx").graph.initializers
    names = [name for name in constants if name.endswith("key_scale")]
    scales = np.array([constants[name].const_value.numpy() for name in names])  # type: ignore[union-attr]
    assert scales.shape == (2, 2, 16)
    np.testing.assert_array_equal(np.log2(scales) % 1, 0)
    assert scales.min() < scales.max()
    assert sum(name.endswith("key_mean") for name in constants) == 2
    again = built(plugins, tiny_dense, "again", kv_int8={})
    assert (path / "model.onnx").read_bytes() == (again / "model.onnx").read_bytes()


def test_who_feeds_a_cache_of_floats_is_told(plugins: Plugins, tiny_dense: Path) -> None:
    model = Model.load(built(plugins, tiny_dense, "bytes", kv_int8={}))
    feeds = {
        "input_ids": np.array([[5]]),
        "attention_mask": np.ones((1, 1), np.int64),
        "position_ids": np.zeros((1, 1), np.int64),
    }
    (state,) = model.states
    layers, *sizes, row = state.shape(0)
    for layer in range(layers // 2):
        for part in ("key", "value"):
            floats = np.zeros((*sizes, 4 * (row - 1)), np.float32)
            feeds[f"past_key_values.{layer}.{part}"] = floats
    with pytest.raises(ValueError, match=r"past_layers\.key_values.* are missing from input feed"):
        model.session.run(["logits"], feeds)


def test_the_command_line(tiny_dense: Path, tmp_path: Path) -> None:
    out = tmp_path / "bytes"
    result = CliRunner().invoke(main, ["build", str(tiny_dense), "-o", str(out), "--kv-int8=on"])
    assert result.exit_code == 0, result.output
    assert "kv-int8" in Bundle.open(out).manifest.techniques
    shutil.rmtree(out)
    result = CliRunner().invoke(main, ["build", str(tiny_dense), "-o", str(out)])
    assert "kv-int8" not in Bundle.open(out).manifest.techniques


# ---- what it costs, where it cannot be ----


def site(head_size: int) -> Site:
    return Site("layers.0.attention", SiteKind.ATTENTION, "a", 0, head_size=head_size)


def test_the_plan_knows_the_bytes(plugins: Plugins, tiny_dense: Path) -> None:
    from tamiz.survey.survey import survey

    found = survey(Bundle.open(tiny_dense), plugins)
    plan = make_plan(found.sites, choose(plugins.techniques(), {"kv-int8": {}}))
    model = Model.load(built(plugins, tiny_dense, "bytes", kv_int8={}))
    rows = sum(np.prod([size for size in s.sizes if size]) * 4 for s in model.states)
    read = sum(p.after.read for p in predict(found, plan, 1000) if p.plan.site.kind == "attention")
    assert read == 1000 * rows


def test_sketches_are_read_as_they_are() -> None:
    assert KV_INT8.effect is not None
    parts = {Access.RECORDS: Part(3200), Access.INDEX: Part(100, 9)}
    cost = Cost(5, 6400 + 100, 7, parts=parts)
    after = KV_INT8.effect(site(64), CONFIG, cost, 1000)
    left = parts | {Access.RECORDS: Part(850)}
    # Filters store the mean of the keys; the scale takes as many bytes.
    assert after == Cost(10, 1700 + 100, 7 + 11520, parts=left)
    alone = KV_INT8.effect(site(64), CONFIG, Cost(0, 512000), 1000)
    assert alone.stored == 512


@pytest.mark.parametrize("size", [6, 516])
def test_a_head_size_that_bytes_do_not_fit_is_refused(size: int) -> None:
    assert KV_INT8.effect is not None
    message = f"its head size is {size}, expected a multiple of 4 up to 512"
    with pytest.raises(FitError, match=message):
        KV_INT8.fit(site(size), np.zeros(0), None, CONFIG)
    cost = Cost(0, 100)
    assert KV_INT8.effect(site(size), CONFIG, cost, 10) == cost
