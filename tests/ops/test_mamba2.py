"""Mamba2 beside `tamiz_ops.reference`; `test_recurrences` has what it shares with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.recurrent_ops import Mamba2Case
from tamiz_ops.mamba_reference import Mamba2Sizes

ISAS = tamiz_ops.cpu()["isas"]
SIZES = Mamba2Case.SIZES


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("tokens", "batch", "sizes"),
    [
        (1, 1, SIZES),
        (20, 2, SIZES),
        (9, 1, Mamba2Sizes(1, 1, 1, 2, 1)),
        (33, 1, Mamba2Sizes(5, 1, 48, 16, 3)),
        (17, 2, Mamba2Sizes(8, 1, 64, 128, 4)),
    ],
)
def test_values_are_those_of_the_reference(isa, tokens, batch, sizes) -> None:
    case = Mamba2Case(2 * tokens, batch, sizes)
    case.mask[-1, : tokens // 2] = 0
    _, state = case.run(0, tokens, case.state, isa=isa)
    found = case.run(tokens, 2 * tokens, state, isa=isa)
    for value, exact in zip(found, case.exact(tokens, 2 * tokens, state), strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-4, atol=5e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("attributes", "without"),
    [
        ({"norm_first": 1}, ()),
        ({"dt_min": 0.4, "dt_max": 0.9}, ()),
        ({}, (4,)),
        ({"norm_first": 1}, (5,)),
        ({}, (4, 5)),
    ],
)
def test_norm_limits_and_biases_are_optional(isa, attributes, without) -> None:
    case = Mamba2Case(20)
    case.attributes |= attributes
    for index in without:
        case.weights[index] = None
    found = case.run(0, 20, case.state, isa=isa)
    for value, exact in zip(found, case.exact(0, 20, case.state), strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-4, atol=5e-5)


def test_limits_of_the_step_change_what_comes_out() -> None:
    case, limited = Mamba2Case(5), Mamba2Case(5)
    limited.attributes["dt_max"] = 0.1
    assert np.abs(case.whole() - limited.whole()).max() > 0.01


def test_the_state_is_that_of_the_recurrence() -> None:
    case = Mamba2Case(40)
    _, state = case.run(0, 40, case.state)
    exact = case.exact(0, 40, case.state)[1]
    np.testing.assert_allclose(state, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: np.zeros((4, 290), np.float32)}, "projected has shape .* expected 3 dimensions"),
        ({0: np.zeros((1, 4, 291), np.float32)}, "projected has 291 columns and taps 158 channels"),
        ({1: np.zeros((17, 158), np.float32)}, "taps has 17 rows, expected 1 to 16"),
        ({1: np.zeros((4, 160), np.float32)}, "projected has 290 columns and taps 160 channels"),
        ({2: np.zeros(5, np.float32)}, "rate has 5 heads, expected a multiple of the 2 groups"),
        ({3: np.zeros(5, np.float32)}, r"dt_bias has shape \[5\], expected \[6\] \(heads\)"),
        ({4: np.zeros(5, np.float32)}, r"skip has shape \[5\], expected \[6\] \(heads\)"),
        ({5: np.zeros(5, np.float32)}, r"conv_bias has shape \[5\], expected \[158\]"),
        ({6: np.zeros(5, np.float32)}, r"weight has shape \[5\], expected \[126\]"),
        ({7: np.zeros((1, 2, 9), np.float32)}, r"past has shape \[1, 2, 9\], expected \[1, 2, "),
        ({8: np.ones((1, 3), np.int64)}, "attention_mask has 3 columns, expected at least"),
        ({8: np.ones((2, 4), np.int64)}, r"attention_mask has shape \[2, 4\], expected \[1, 4\]"),
        ({8: np.ones((1, 6), np.int64)}, "past holds 0 tokens and has held 0, so it cannot go on"),
    ],
)
def test_wrong_inputs_are_refused_by_name(change: dict[int, Any], message: str) -> None:
    case = Mamba2Case(4)
    inputs = case.inputs(0, 4, case.state)
    for index, value in change.items():
        inputs[index] = value
    with pytest.raises(ValueError, match=message):
        tamiz_ops.run("Mamba2", inputs, **case.attributes)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"groups": 0}, "'groups' is below 1"),
        ({"dt_min": 2.0, "dt_max": 1.0}, "'dt_min' is above 'dt_max'"),
    ],
)
def test_absurd_attributes_are_refused(attributes, message) -> None:
    case = Mamba2Case(4)
    case.attributes |= attributes
    with pytest.raises(ValueError, match=message):
        case.whole()
