"""SelectiveScan beside `tamiz_ops.reference`; `test_recurrences` has what it shares with others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.recurrent_ops import ScanCase
from tamiz_ops.scan_reference import ScanSizes

ISAS = tamiz_ops.cpu()["isas"]
SIZES = ScanCase.SIZES


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("tokens", "batch", "sizes"),
    [
        (1, 1, SIZES),
        (20, 2, SIZES),
        (9, 1, ScanSizes(1, 1)),
        (33, 1, ScanSizes(64, 16)),
        (17, 2, ScanSizes(256, 8)),
    ],
)
def test_values_are_those_of_the_reference(isa, tokens, batch, sizes) -> None:
    case = ScanCase(2 * tokens, batch, sizes)
    case.mask[-1, : tokens // 2] = 0
    _, state = case.run(0, tokens, case.state, isa=isa)
    found = case.run(tokens, 2 * tokens, state, isa=isa)
    for value, exact in zip(found, case.exact(tokens, 2 * tokens, state), strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize("isa", ISAS)
def test_steps_of_every_size_are_softplus(isa) -> None:
    """With rate 0, x = b = c = 1 and one token, y is softplus(dt) silu(z)."""
    dt = np.array([-80, -30, -17, -5, -1e-3, 0, 0.3, 1, 4, 15, 19, 21, 60], np.float32)
    case = ScanCase(1, 1, ScanSizes(len(dt), 1))
    x, steps, b, c, _ = case.rows
    x[:], steps[:], b[:], c[:] = 1, dt, 1, 1
    case.weights = [np.zeros((1, len(dt)), np.float32), np.zeros(len(dt), np.float32)]
    y, _ = case.run(0, 1, case.state, isa=isa)
    z = case.rows[4][0, 0].astype(np.float64)
    expected = np.log1p(np.exp(dt.astype(np.float64))) * z / (1 + np.exp(-z))
    np.testing.assert_allclose(y[0, 0], expected, rtol=1e-6)


def test_the_state_is_that_of_the_recurrence() -> None:
    case = ScanCase(40)
    _, state = case.run(0, 40, case.state)
    np.testing.assert_allclose(state, case.exact(0, 40, case.state)[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: np.zeros((4, 85), np.float32)}, "x has shape .* expected 3 dimensions"),
        ({0: np.zeros((1, 4, 84), np.float32)}, r"x has shape .* expected \[1, 4, 85\]"),
        ({1: np.zeros((1, 4, 84), np.float32)}, r"dt has shape .* expected \[1, 4, 85\]"),
        ({2: np.zeros((1, 4, 6), np.float32)}, r"b has shape .* expected \[1, 4, 5\]"),
        ({3: np.zeros((1, 4, 6), np.float32)}, r"c has shape .* expected \[1, 4, 5\]"),
        ({4: np.zeros((1, 3, 85), np.float32)}, r"z has shape .* expected \[1, 4, 85\]"),
        ({5: np.zeros((300, 85), np.float32)}, "rate has 300 rows, expected 1 to 256"),
        ({6: np.zeros(5, np.float32)}, r"skip has shape \[5\], expected \[85\]"),
        ({7: np.zeros((1, 2, 9), np.float32)}, r"past has shape \[1, 2, 9\], expected \[1, 2, "),
        ({8: np.ones((1, 3), np.int64)}, "attention_mask has 3 columns, expected at least"),
        ({8: np.ones((1, 6), np.int64)}, "past holds 0 tokens and has held 0, so it cannot go on"),
    ],
)
def test_wrong_inputs_are_refused_by_name(change: dict[int, Any], message: str) -> None:
    case = ScanCase(4)
    inputs = case.inputs(0, 4, case.state)
    for index, value in change.items():
        inputs[index] = value
    with pytest.raises(ValueError, match=message):
        tamiz_ops.run("SelectiveScan", inputs)
