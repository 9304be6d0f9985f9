"""Pooling of hidden states, against sentence-transformers 6.2.0.

The values were made by its modules `Pooling`, `Dense` and `Normalize` in torch 2.13.0, on the same
hidden states, weights and masks.
"""

from __future__ import annotations

import numpy as np
import pytest

from tamiz.runtime.embedding.pooling import MODES, Pooling

HIDDEN = np.array(
    [
        [[-1, -0.5, 0], [0.75, -0.75, 0.5], [0.5, -0.25, -1], [1, 1, 1], [-0.5, 0.25, 1]],
        [
            [0.25, 0.75, 1.25],
            [-0.75, 0.5, -1],
            [-1, 1, 0.25],
            [-0.5, -0.5, -0.5],
            [0.75, 1.5, -0.5],
        ],
    ],
    np.float32,
)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
#: By mode: with the two tokens of a prompt, and without them.
EXPECTED = {
    "cls": ([[-1.0, -0.5, 0.0], [0.25, 0.75, 1.25]], [[0.5, -0.25, -1.0], [-1.0, 1.0, 0.25]]),
    "max": ([[1.0, 1.0, 1.0], [0.25, 1.0, 1.25]], [[1.0, 1.0, 1.0], [-1.0, 1.0, 0.25]]),
    "mean": (
        [[0.15, -0.05, 0.3], [-0.5, 0.75, 0.166667]],
        [[0.333333, 0.333333, 0.333333], [-1.0, 1.0, 0.25]],
    ),
    "mean_sqrt_len_tokens": (
        [[0.33541, -0.111803, 0.67082], [-0.866025, 1.299038, 0.288675]],
        [[0.57735, 0.57735, 0.57735], [-1.0, 1.0, 0.25]],
    ),
    "weightedmean": (
        [[0.233333, 0.166667, 0.466667], [-0.708333, 0.791667, 0.0]],
        [[0.25, 0.375, 0.5], [-1.0, 1.0, 0.25]],
    ),
    "lasttoken": ([[-0.5, 0.25, 1.0], [-1.0, 1.0, 0.25]], [[-0.5, 0.25, 1.0], [-1.0, 1.0, 0.25]]),
}


@pytest.mark.parametrize("mode", sorted(EXPECTED))
@pytest.mark.parametrize("include_prompt", [True, False])
def test_a_mode_gives_what_sentence_transformers_gives(mode: str, include_prompt: bool) -> None:
    found = Pooling((mode,), include_prompt)(HIDDEN, MASK, prompt=2)
    expected = EXPECTED[mode][0 if include_prompt else 1]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert found.dtype == np.float32


def test_every_mode_is_tested() -> None:
    assert set(EXPECTED) == set(MODES.values())


def test_vectors_of_several_modes_are_joined_in_their_order() -> None:
    modes = ("cls", "max", "mean")
    found = Pooling(modes)(HIDDEN, MASK)
    expected = np.concatenate([EXPECTED[mode][0] for mode in modes], axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("modes", [*((mode,) for mode in EXPECTED), ("max", "mean", "lasttoken")])
def test_padding_changes_nothing(modes: tuple[str, ...]) -> None:
    alone = Pooling(modes)(HIDDEN[1:, :3], MASK[1:, :3])
    np.testing.assert_allclose(Pooling(modes)(HIDDEN, MASK)[1:], alone, atol=1e-7)


@pytest.mark.parametrize("modes", [*((mode,) for mode in EXPECTED), ("max", "mean", "lasttoken")])
def test_the_backward_pass_has_the_slope_of_differences(modes: tuple[str, ...]) -> None:
    random = np.random.default_rng(0)
    hidden = HIDDEN + 0.01 * random.standard_normal(HIDDEN.shape)  # no two are equal
    pooling = Pooling(modes)
    gradient = random.standard_normal((2, 3 * len(modes)))
    found = pooling.back(hidden, MASK, gradient)
    direction = random.standard_normal(hidden.shape)
    ends = [pooling(hidden + way * 1e-5 * direction, MASK) for way in (1, -1)]
    expected = float((gradient * (ends[0] - ends[1])).sum()) / 2e-5
    assert float((found * direction).sum()) == pytest.approx(expected, rel=1e-6)
