"""Scores less a slope of each head times the distance (ALiBi), on every instruction set."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.attention_case import TOLERANCE, CaseWith, assert_equal_in_cuts, check_bytes, check_pages

ISAS = tamiz_ops.cpu()["isas"]
#: The input's number.
SLOPE = 17


class SlopeCase(CaseWith):
    """A case with a slope for each query head."""

    number = SLOPE

    def draw(self) -> np.ndarray:
        return np.exp2(-self.rng.uniform(1, 8, self.heads["num_heads"])).astype(np.float32)


def check(case: SlopeCase, isa: str, **attributes: Any) -> None:
    got, expected = case.run(isa, threads=2, **attributes), case.reference(**attributes)
    np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(got[1], expected[1], rtol=0, atol=1e-6)


def test_the_reference_adds_slope_times_position_as_bloom_does() -> None:
    """softmax(q kᵀ / 2 + slope · j): a constant of the query changes no softmax."""
    case = SlopeCase(tokens=3, past=4, heads=(2, 1), dim=4, rotary=0)
    y, keys, values = case.reference()
    scores = np.einsum("ihd,jd->hij", case.q.reshape(3, 2, 4).astype(np.float64), keys[0, 0]) / 2
    scores += case.own[:, None, None].astype(np.float64) * np.arange(7)
    scores[:, ~np.tri(3, 7, 4, dtype=bool)] = -np.inf
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = np.einsum("hij,jd->ihd", weights, values[0, 0]).reshape(1, 3, 8)
    np.testing.assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 5, 12, 13, 31, 70])
@pytest.mark.parametrize("past", [0, 150, 700])
@pytest.mark.parametrize(("heads", "dim"), [((8, 2), 64), ((3, 3), 20), ((1, 1), 7)])
def test_steps_and_prompts(isa, tokens, past, heads, dim) -> None:
    check(SlopeCase(tokens=tokens, past=past, heads=heads, dim=dim, rotary=0), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize(
    "choice", [{}, {"window": 30}, {"window": 128, "sinks": 0}, {"softcap": 1.5}]
)
def test_batches_masks_windows_and_caps(isa, tokens, choice) -> None:
    case = SlopeCase(batch=3, tokens=tokens, past=300, heads=(6, 2), dim=32)
    case.mask[1, :70] = 0
    case.mask[2] = case.rng.random(case.mask.shape[1]) < 0.7
    check(case, isa, **choice)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 40])
def test_a_cache_of_bytes(isa, tokens) -> None:
    case = SlopeCase(tokens=tokens, past=200, heads=(6, 2), dim=64, rotary=0)
    case.others = {9: case.random(2, 64)}
    check_bytes(case, isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cut", [1, 13, 100])
@pytest.mark.parametrize("window", [{}, {"window": 128, "sinks": 0}])
def test_bits_do_not_depend_on_how_a_prompt_is_cut(isa, cut, window) -> None:
    assert_equal_in_cuts(SlopeCase, isa, cut, **window)


@pytest.mark.parametrize("isa", ISAS)
def test_pages_of_several_sequences(isa) -> None:
    check_pages(SlopeCase, isa)


@pytest.mark.parametrize(
    ("number", "value", "message"),
    [
        (SLOPE, np.zeros(3, np.float32), r"head_slope has shape \[3\], expected \[4\]"),
        (8, np.zeros((1, 2, 0, 2), np.float32), "past_sketch is given, expected none with"),
    ],
)
def test_errors_are_one_clear_sentence(number, value, message) -> None:
    case = SlopeCase(heads=(4, 2), dim=16)
    inputs = case.inputs
    inputs[number] = value
    with pytest.raises(ValueError, match=message) as error:
        tamiz_ops.run("Attention", inputs, out=[True] * 4, **case.heads)
    assert "\n" not in str(error.value)
