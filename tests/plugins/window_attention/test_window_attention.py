"""window-attention through build: steps and prefill see the same window."""

from pathlib import Path

import numpy as np

from kit.masked_columns import IDS, check_masked_columns
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.planning.plan import choose
from tamiz.plugins import load
from tamiz.runtime.model import Model


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


def test_masked_columns_are_no_positions(tiny_dense: Path, tmp_path: Path) -> None:
    check_masked_columns(tiny_dense, tmp_path / "bare", {"window-attention": {"tokens": 80}})
