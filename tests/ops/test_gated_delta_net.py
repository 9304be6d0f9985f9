"""GatedDeltaNet beside `tamiz_ops.reference`; `test_recurrences` has what it shares with others."""

from __future__ import annotations

import numpy as np
import pytest

import tamiz_ops
from kit.recurrent_ops import DeltaCase
from tamiz_ops.recurrence_reference import DeltaNetSizes

ISAS = tamiz_ops.cpu()["isas"]
SIZES = DeltaCase.SIZES


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tiled", [0, 1])
@pytest.mark.parametrize(
    ("tokens", "batch", "sizes"),
    [
        (1, 1, SIZES),
        (20, 2, SIZES),
        (9, 1, DeltaNetSizes(1, 1, 2, 1, 1)),
        (33, 1, DeltaNetSizes(3, 3, 16, 48, 3)),
        (17, 2, DeltaNetSizes(2, 6, 128, 128, 4)),
    ],
)
def test_values_are_those_of_the_reference(isa, tiled, tokens, batch, sizes) -> None:
    case = DeltaCase(2 * tokens, batch, sizes)
    case.attributes["tiled"] = tiled
    case.mask[-1, : tokens // 2] = 0
    _, state = case.run(0, tokens, case.state, isa=isa)
    found = case.run(tokens, 2 * tokens, state, isa=isa)
    for value, exact in zip(found, case.exact(tokens, 2 * tokens, state), strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-4, atol=2e-5)


def test_the_state_is_that_of_the_recurrence() -> None:
    case = DeltaCase(40)
    _, state = case.run(0, 40, case.state)
    exact = case.exact(0, 40, case.state)[1]
    np.testing.assert_allclose(state, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({0: np.zeros((1, 4, 5), np.float32)}, r"qkv has shape \[1, 4, 5\], expected \[1, 4, 116"),
        ({1: np.zeros((1, 4, 5), np.float32)}, r"z has shape \[1, 4, 5\], expected \[1, 4, 84\]"),
        ({2: np.zeros((1, 4, 5), np.float32)}, r"b has shape .* \(batch, sequence, value heads\)"),
        ({4: np.zeros((17, 116), np.float32)}, "taps has 17 rows, expected 1 to 16"),
        ({4: np.zeros((4, 118), np.float32)}, "heads have 8 keys and 21 values, expected an even"),
        ({5: np.zeros(3, np.float32)}, "rate has 3 value heads, expected a multiple of the 2 key"),
        (
            {8: np.zeros((1, 2, 9), np.float32)},
            r"past has shape \[1, 2, 9\], expected \[1, 2, 3264",
        ),
        ({9: np.ones((1, 3), np.int64)}, "attention_mask has 3 columns, expected at least"),
        ({9: np.ones((2, 4), np.int64)}, r"attention_mask has shape \[2, 4\], expected \[1, 4\]"),
        ({9: np.ones((1, 6), np.int64)}, "past holds 0 tokens and has held 0, so it cannot go on"),
    ],
)
def test_wrong_inputs_are_refused_by_name(change, message) -> None:
    case = DeltaCase(4)
    inputs = case.inputs(0, 4, case.state)
    for index, value in change.items():
        inputs[index] = value
    with pytest.raises(ValueError, match=message):
        tamiz_ops.run("GatedDeltaNet", inputs, **case.attributes)
