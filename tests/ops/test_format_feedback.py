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
    quantise,
    quantise_with_feedback,
)


def correlated(k: int) -> np.ndarray:
    """The second moment of inputs that 24 factors explain in part."""
    random = np.random.default_rng(5)
    x = random.standard_normal((4 * k, 24)) @ random.standard_normal((24, k))
    x += random.standard_normal(x.shape)
    return (x.T @ x / len(x)).astype(np.float32)


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
    format, weight, moments = find_format(name), normal(n, k), correlated(k)
    packed = quantise_with_feedback(format, weight, feedback_factor(moments))
    searched = quantise(format, weight, np.diagonal(moments).copy())
    ratio = lost(format, weight, packed, moments) / lost(format, weight, searched, moments)
    assert ratio < 0.5


@pytest.mark.parametrize("name", ["q4_0", "q3_k", "q4_units"])
def test_inputs_that_are_not_correlated_gain_nothing_and_lose_little(name: str) -> None:
    format, weight, moments = find_format(name), normal(32, 512), np.eye(512, dtype=np.float32)
    packed = quantise_with_feedback(format, weight, feedback_factor(moments))
    searched = quantise(format, weight)
    ratio = lost(format, weight, packed, moments) / lost(format, weight, searched, moments)
    assert ratio == pytest.approx(1, abs=0.02)


def test_outputs_do_not_depend_on_each_other() -> None:
    format, weight, moments = find_format("q3_k"), normal(48, 256), correlated(256)
    factor = feedback_factor(moments)
    whole = quantise_with_feedback(format, weight, factor)
    assert np.array_equal(whole[:1], quantise_with_feedback(format, weight[:16], factor))


def test_faults_are_named() -> None:
    format, weight = find_format("q4_0"), normal(4, 64)
    with pytest.raises(ValueError, match=r"factor is \[32, 32\], expected \[64, 64\]"):
        quantise_with_feedback(format, weight, np.eye(32, dtype=np.float32))
    with pytest.raises(ValueError, match="expected a positive number"):
        feedback_factor(np.zeros((64, 64), np.float32))
    negative = -np.ones((64, 64), np.float32) + 3 * np.eye(64, dtype=np.float32)
    with pytest.raises(ValueError, match="not positive definite"):
        feedback_factor(negative)
