"""Sinks of attention, a score of each head in the sum of its softmax, on every instruction set."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.attention_case import (
    TOLERANCE,
    Case,
    CaseWith,
    assert_equal_in_cuts,
    check_bytes,
    check_filter,
    check_pages,
)
from tamiz_ops import reference

ISAS = tamiz_ops.cpu()["isas"]
#: The input's number.
SINK = 15


class SinkCase(CaseWith):
    """A case with a sink for each query head."""

    number = SINK

    def draw(self) -> np.ndarray:
        return 2 * self.random(self.heads["num_heads"])


def check(case: SinkCase, isa: str, **attributes: Any) -> None:
    got = case.run(isa, threads=2, **attributes)[0]
    expected = case.reference(**attributes)[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


def test_the_reference_is_a_softmax_with_one_more_score() -> None:
    case = SinkCase(tokens=1, past=6, heads=(1, 1), dim=8, rotary=0)
    y, keys, values = case.reference(scale=2.0)
    score = np.append(2.0 * keys[0, 0] @ case.q[0, 0], case.own[0])
    weight = np.exp(score) / np.exp(score).sum()
    np.testing.assert_allclose(y[0, 0], weight[:-1] @ values[0, 0], atol=1e-12)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 5, 12, 13, 31, 70])
@pytest.mark.parametrize("past", [0, 150, 700])
@pytest.mark.parametrize(("heads", "dim"), [((8, 2), 64), ((3, 1), 20), ((1, 1), 7)])
def test_steps_and_prompts(isa, tokens, past, heads, dim) -> None:
    check(SinkCase(tokens=tokens, past=past, heads=heads, dim=dim, rotary=4), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize(
    "choice", [{}, {"window": 30}, {"window": 128, "sinks": 0}, {"softcap": 1.5}]
)
def test_batches_masks_and_windows(isa, tokens, choice) -> None:
    case = SinkCase(batch=3, tokens=tokens, past=300, heads=(6, 2), dim=32)
    case.mask[1, :70] = 0
    case.mask[2] = case.rng.random(case.mask.shape[1]) < 0.7
    check(case, isa, **choice)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 40])
def test_a_cache_of_bytes_keeps_the_mean_of_keys(isa, tokens) -> None:
    case = SinkCase(tokens=tokens, past=200, heads=(6, 2), dim=64, rotary=0)
    case.others = {9: case.random(2, 64), 14: np.full((2, 64), 2, np.float32)}
    check_bytes(case, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [64, 80])
def test_keys_that_a_filter_keeps_share_the_softmax_with_the_sink(isa, dim) -> None:
    check_filter(SinkCase(tokens=1, past=400, heads=(2, 1), dim=dim, rotary=0), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cut", [1, 13, 100])
@pytest.mark.parametrize("window", [{}, {"window": 128, "sinks": 0}])
def test_bits_do_not_depend_on_how_a_prompt_is_cut(isa, cut, window) -> None:
    assert_equal_in_cuts(SinkCase, isa, cut, **window)


@pytest.mark.parametrize("isa", ISAS)
def test_pages_of_several_sequences(isa) -> None:
    check_pages(SinkCase, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("past", [40, 700])
def test_sinks_of_any_size(isa, past) -> None:
    case = SinkCase(tokens=20, past=past, heads=(4, 2), dim=16)
    without = Case(tokens=20, past=past, heads=(4, 2), dim=16)
    case.own[:] = [-np.inf, -3e38, 3e38, 1e4]
    got, plain = (c.run(isa)[0].reshape(20, 4, 16) for c in (case, without))
    np.testing.assert_array_equal(got[:, 2:], 0)
    np.testing.assert_allclose(got[:, :2], plain[:, :2], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
def test_queries_that_see_no_key_are_zero(isa) -> None:
    case = SinkCase(tokens=30, heads=(2, 1), dim=16)
    case.mask[:] = 0
    np.testing.assert_array_equal(case.run(isa)[0], 0)


@pytest.mark.parametrize(
    ("number", "value", "message"),
    [
        (SINK, np.zeros(3, np.float32), r"head_sink has shape \[3\], expected \[4\]"),
        (10, np.zeros((1, 66), np.float32), "past_event is given, expected none with head_sink"),
    ],
)
def test_errors_are_one_clear_sentence(number, value, message) -> None:
    case = SinkCase(heads=(4, 2), dim=16)
    inputs = case.inputs
    inputs[number] = value
    with pytest.raises(ValueError, match=message) as error:
        tamiz_ops.run("Attention", inputs, out=[True] * 3, **case.heads)
    assert "\n" not in str(error.value)


def test_the_reference_of_the_op_takes_the_sinks_by_their_number() -> None:
    case = SinkCase(tokens=3, past=2, heads=(2, 1), dim=8)
    with_sinks = reference.run("Attention", case.inputs, **case.heads)[0]
    assert not np.allclose(with_sinks, reference.run("Attention", case.inputs[:8], **case.heads)[0])
