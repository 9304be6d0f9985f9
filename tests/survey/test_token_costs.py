"""The regression that predicts what a token's errors cost."""

from __future__ import annotations

import numpy as np
import pytest

from tamiz.survey.token_costs import TokenCosts

K, TOKENS, WINDOWS = 12, 400, 8
SLOPE = np.linspace(-0.5, 0.5, K)


def predicted(noise: float, windows: int = WINDOWS, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Of two sites that read one input; costs of the first depend on it, those of the other not."""
    random = np.random.default_rng(0)
    costs = TokenCosts({"a": "x", "b": "x"}, windows)
    for _ in range(windows):
        x = (random.normal(size=(TOKENS, K)) + 3).astype(np.float32)
        log = x @ SLOPE + noise * random.normal(size=TOKENS)
        x[5] *= 1e4  # a token unlike all others
        squares = {"a": scale * np.exp(log), "b": np.exp(random.normal(size=TOKENS))}
        costs.add({"x": x}, squares)
    return costs.predictors()


def test_it_finds_what_the_costs_depend_on() -> None:
    found = predicted(0.5)
    assert set(found) == {"a"}
    assert found["a"].dtype == np.float32
    np.testing.assert_allclose(found["a"][:-1], SLOPE, atol=0.05)


def test_what_it_predicts_is_one_on_average() -> None:
    found = predicted(0.5, scale=100.0)["a"]
    x = np.random.default_rng(1).normal(size=(20000, K)) + 3
    assert np.exp(x @ found[:-1] + found[-1]).mean() == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(found, predicted(0.5)["a"], rtol=1e-4, atol=1e-5)


def test_what_does_not_hold_for_other_windows_is_left_out() -> None:
    assert predicted(100.0) == {}


@pytest.mark.parametrize("windows", [1, 3])
def test_without_windows_to_check_it_on_nothing_is_foretold(windows: int) -> None:
    assert predicted(0.5, windows) == {}


def test_costs_and_inputs_that_are_all_zero_predict_nothing() -> None:
    costs = TokenCosts({"a": "x"}, 4)
    for _ in range(4):
        costs.add({"x": np.zeros((9, K), np.float32)}, {"a": np.zeros(9)})
    assert costs.predictors() == {}
