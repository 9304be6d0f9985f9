"""What outputs lose, against values by hand: ½ ‖y − ŷ‖² / ‖y‖² in the mean over rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tamiz.evaluation.output_losses import loss_of

Y = np.array([[3.0, 4.0], [0.0, 5.0]], np.float32)


@pytest.mark.parametrize(
    ("expected", "found", "loss"),
    [
        (Y, Y, 0.0),
        (Y, 1.1 * Y, 0.005),
        (Y, Y[:, ::-1], (1 / 25 + 1) / 2),  # 1 - cosine of each row: 24 / 25 and 0
        (np.float32(2), np.float32(3), 0.125),
        (np.array([[3.0], [4.0]]), np.array([[3.0], [5.0]]), 1 / 50),  # scores: one row
        (np.zeros((2, 3)), np.zeros((2, 3)), 0.0),
        (np.zeros((2, 3)), np.ones((2, 3)), 1.0),
        (np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), 0.25),
        (np.array([[np.nan, 1.0], [3.0, 4.0]]), np.array([[0.0, 1.0], [3.0, 4.0]]), 0.0),
        (Y, np.full_like(Y, np.nan), math.inf),
        (Y, Y[:1], math.inf),
        (np.zeros((0, 3)), np.zeros((0, 3)), 0.0),
    ],
)
def test_the_loss_of_an_output(expected: np.ndarray, found: np.ndarray, loss: float) -> None:
    assert loss_of([np.asarray(expected)], [np.asarray(found)]) == pytest.approx(loss, rel=1e-6)


def test_a_row_of_nearly_nothing_counts_as_a_hundredth_of_the_usual_length() -> None:
    y = np.array([[1.0, 0.0], [1e-9, 0.0]])
    usual = math.sqrt((1 + 1e-18) / 2)
    error = 1e-3 * usual
    expected = (0 + error**2 / (0.01 * usual) ** 2) / 2 / 2
    assert loss_of([y], [y + np.array([[0, 0], [error, 0]])]) == pytest.approx(expected, rel=1e-6)


def test_the_worst_tensor_of_a_sequence_counts() -> None:
    assert loss_of([Y, Y], [Y, 1.1 * Y]) == pytest.approx(0.005, rel=1e-6)
    assert loss_of([Y, Y], [Y]) == math.inf
