"""window-attention through build: steps and prefill see the same window."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import tamiz_ops
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.planning.plan import choose
from tamiz.plugins import load
from tamiz.runtime.model import Model

IDS = np.random.default_rng(0).integers(2, 262, 100).tolist()


def window(source: Path, tokens: int) -> Model:
    plugins, out = load(), source.parent / f"window{tokens}"
    choices = choose(plugins.techniques(), {"window-attention": {"tokens": tokens}})
    build(source, out, choices, plugins, Options(max_dppl=None))
    return Model.load(out)


def test_a_window_as_long_as_the_text_changes_nothing(tiny_dense: Path) -> None:
    ids = np.array([IDS])
    plugins, out = load(), tiny_dense.parent / "exact"
    build(tiny_dense, out, choose(plugins.techniques()), plugins)
    found = window(tiny_dense, 100).logits(ids)
    np.testing.assert_array_equal(found, Model.load(out).logits(ids))


def test_steps_and_prefill_see_the_same_window(tiny_dense: Path) -> None:
    model = window(tiny_dense, 20)
    expected = model.logits(np.array([IDS]))[0]
    sequence = model.sequence()
    np.testing.assert_allclose(sequence.read(IDS[:50]), expected[49], rtol=0, atol=1e-3)
    for index in range(50, 100):
        row = sequence.step(IDS[index])
        np.testing.assert_allclose(row, expected[index], rtol=0, atol=1e-3)


def test_far_tokens_are_seen_through_layers_only(tiny_dense: Path) -> None:
    # Two layers reach back 2 * 19 tokens; sinks are the first four.
    model = window(tiny_dense, 20)
    other = [*IDS[:30], 5, *IDS[31:]]
    found, changed = model.logits(np.array([IDS, other]))
    np.testing.assert_array_equal(found[30 + 39 :], changed[30 + 39 :])
    assert (found[30 + 15] != changed[30 + 15]).any()


@pytest.mark.parametrize(
    "choosing",
    [{}, {"key-filter": {"keep": 3}}, {"state-pack": {"keep": 3, "recent": 2}}],
    ids=["all keys", "key-filter", "state-pack"],
)
def test_masked_columns_are_no_positions(tiny_dense: Path, choosing: dict[str, Any]) -> None:
    """A bare session: 5 hidden columns behind a prompt of 90 change nothing in later steps."""
    plugins, out = load(), tiny_dense.parent / "bare"
    choices = choose(plugins.techniques(), {"window-attention": {"tokens": 80}, **choosing})
    build(tiny_dense, out, choices, plugins, Options(max_dppl=None))
    options = ort.SessionOptions()
    tamiz_ops.register(options)
    session = ort.InferenceSession(str(out / "model.onnx"), options)
    for plain, hidden in zip(last_steps(session, 0), last_steps(session, 5), strict=True):
        np.testing.assert_allclose(hidden, plain, rtol=0, atol=1e-4 * np.abs(plain).max())


def last_steps(session: ort.InferenceSession, holes: int) -> Iterator[np.ndarray]:
    """Logits of three tokens after a prompt of 90 and so many columns that the mask hides."""
    states = {
        value.name: np.zeros([n if isinstance(n, int) else "past" not in n for n in value.shape])
        for value in session.get_inputs()
        if value.name.startswith("past")
    }
    states = {name: array.astype(np.float32) for name, array in states.items()}
    mask = np.ones((1, 0), np.int64)
    for begin, tokens, shown in ((0, 90, 1), (90, holes, 0), *((i, 1, 1) for i in range(90, 93))):
        if not tokens:
            continue
        positions = np.arange(begin, begin + tokens)[None]
        mask = np.concatenate([mask, np.full_like(positions, shown)], axis=1)
        given = {"attention_mask": mask, "position_ids": positions}
        given["input_ids"] = np.array([IDS[begin : begin + tokens]])
        logits, *presents = session.run(None, {**given, **states})
        states = dict(zip(states, presents, strict=True))
        if tokens == 1:
            yield logits[0, -1]
