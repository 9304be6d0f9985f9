"""Fits with error feedback: every format, judged by the error of the product."""

from __future__ import annotations

import numpy as np
import pytest

from tamiz_ops.formats import (
    FITTED,
    Format,
    dequantize,
    feedback_factor,
    find_format,
    quantize,
    quantize_with_feedback,
)

pytestmark = pytest.mark.slow


def correlated(k: int, count: int) -> np.ndarray:
    """Inputs ``[count, k]`` that 24 factors explain in part, with a second moment of Xᵀ X."""
    random = np.random.default_rng(5)
    x = random.standard_normal((count, 24)) @ random.standard_normal((24, k))
    x += random.standard_normal(x.shape)
    return (x / np.sqrt(count)).astype(np.float32)


def constant(k: int, value: float) -> np.ndarray:
    return np.full(k, value, np.float32)


def zeros(k: int) -> np.ndarray:
    return constant(k, 0.0)


def normal(n: int, k: int) -> np.ndarray:
    return np.random.default_rng(6).standard_normal((n, k)).astype(np.float32)


def lost(format: Format, weight: np.ndarray, packed: np.ndarray, moments: np.ndarray) -> float:
    """(w − ŵ)ᵀ H (w − ŵ) of all outputs, relative to wᵀ H w."""
    error = (weight - dequantize(format, packed, *weight.shape)).astype(np.float64)
    square = np.einsum("nk,kl,nl->", error, moments, error)
    return float(square / np.einsum("nk,kl,nl->", weight, moments, weight, dtype=np.float64))


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize(("n", "k"), [(40, 512), (17, 300)])
def test_feedback_makes_up_for_errors(name: str, n: int, k: int) -> None:
    format, weight, x = find_format(name), normal(n, k), correlated(k, 4 * k)
    packed = quantize_with_feedback(format, weight, feedback_factor(x, zeros(k)))
    moments = x.T @ x
    searched = quantize(format, weight, np.diagonal(moments).copy())
    ratio = lost(format, weight, packed, moments) / lost(format, weight, searched, moments)
    assert ratio < 0.5


@pytest.mark.parametrize("name", ["q4_0", "q3_k", "q4_units"])
def test_inputs_that_are_not_correlated_gain_nothing_and_lose_little(name: str) -> None:
    format, weight, moments = find_format(name), normal(32, 512), np.eye(512, dtype=np.float32)
    packed = quantize_with_feedback(format, weight, feedback_factor(moments, zeros(512)))
    searched = quantize(format, weight)
    ratio = lost(format, weight, packed, moments) / lost(format, weight, searched, moments)
    assert ratio == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("count", [24, 256])
def test_outputs_do_not_depend_on_each_other(count: int) -> None:
    format, weight = find_format("q3_k"), normal(48, 256)
    factor = feedback_factor(correlated(256, count), constant(256, 0.1))
    whole = quantize_with_feedback(format, weight, factor)
    alone = quantize_with_feedback(format, weight[:16], factor)
    # Errors are carried by products of BLAS, whose last bit may differ with the number of rows:
    # then a weight that lies between two levels may take the other one.
    same = dequantize(format, whole, *weight.shape)[:16] == dequantize(format, alone, 16, 256)
    assert same.mean() > 0.98


@pytest.mark.parametrize(("k", "count"), [(300, 60), (512, 1), (1000, 250), (96, 25), (96, 400)])
def test_a_factor_is_that_of_the_second_moments(k: int, count: int) -> None:
    """Of few samples, whose factor has a low rank above its diagonal, and of many."""
    x = correlated(k, count)
    diagonal = np.random.default_rng(1).uniform(1e-5, 1e-3, k).astype(np.float32)
    x[:, 3] *= 100  # an input much larger than all others, as models have them
    found = feedback_factor(x, diagonal, damping=0.0).own(slice(None))
    moments = x.T.astype(np.float64) @ x + np.diag(diagonal).astype(np.float64)
    expected = moments / np.diagonal(moments).mean()
    made = found.astype(np.float64) @ found.T
    sizes = np.sqrt(np.outer(np.diagonal(expected), np.diagonal(expected)))
    assert np.abs((made - expected) / sizes).max() < 2e-5
    assert np.array_equal(found, np.triu(found))


def test_a_factor_of_few_samples_carries_what_its_matrix_does() -> None:
    factor = feedback_factor(correlated(600, 100), constant(600, 0.5)).padded(608)
    errors = normal(5, 608)
    r, carry = factor.own(slice(None)), factor.carry(5)
    for begin in range(0, 608, 256):
        block = slice(begin, min(begin + 256, 608))
        expected = errors[:, :begin] @ r[:begin, block]
        np.testing.assert_allclose(carry.to(block), expected, atol=2e-5)
        # BLAS sums in another order for a product of another shape.
        np.testing.assert_allclose(factor.own(block), r[block, block], atol=1e-6)
        carry.add(block, errors[:, block])


def test_few_samples_lose_as_little_as_all_of_their_second_moments() -> None:
    format, weight, x = find_format("q3_k"), normal(64, 512), correlated(512, 128)
    diagonal = constant(512, 0.2)
    moments = x.T @ x + np.diag(diagonal)
    few = quantize_with_feedback(format, weight, feedback_factor(x, diagonal))
    square = np.linalg.cholesky(moments).T  # as many rows as inputs
    whole = quantize_with_feedback(format, weight, feedback_factor(square, zeros(512)))
    ratio = lost(format, weight, few, moments) / lost(format, weight, whole, moments)
    assert ratio == pytest.approx(1, abs=0.003)


def test_faults_are_named() -> None:
    format, weight = find_format("q4_0"), normal(4, 64)
    with pytest.raises(ValueError, match="factor is of 32 inputs, expected 64"):
        quantize_with_feedback(format, weight, feedback_factor(correlated(32, 99), zeros(32)))
    with pytest.raises(ValueError, match="expected a positive number"):
        feedback_factor(np.zeros((4, 64), np.float32), zeros(64))
    for count in (8, 64):
        x, negative = correlated(64, count), zeros(64)
        negative[3] = -2 * np.square(x[:, 3]).sum()
        with pytest.raises(ValueError, match="not positive definite"):
            feedback_factor(x, negative)
