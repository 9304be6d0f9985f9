import numpy as np
import pytest

from tamiz.api.statistics import Statistics
from tamiz.building.fit.quality import PERFECT, measure

RANDOM = np.random.default_rng(0)
W = RANDOM.normal(size=(40, 24)).astype(np.float32)
FITTED = (W + RANDOM.normal(scale=0.3, size=W.shape)).astype(np.float32)
X = (RANDOM.normal(size=(50, 24)) * RANDOM.exponential(size=24)).astype(np.float32)
KNOWN = Statistics(50, np.square(X).mean(axis=0), X)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.vdot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))


def test_the_definitions() -> None:
    found = measure(W, FITTED, KNOWN)
    rows = [cosine(w, f) for w, f in zip(W, FITTED, strict=True)]
    outputs = [cosine(W @ x, FITTED @ x) for x in X]
    weighted = [cosine(W * np.abs(x), FITTED * np.abs(x)) for x in X]
    expected = {
        "rel_l2": np.linalg.norm(W - FITTED) / np.linalg.norm(W),
        "cos_mean_w": np.mean(rows),
        "cos_p05_w": np.quantile(rows, 0.05),
        "cos_mean_x": np.mean(outputs),
        "cos_p05_x": np.quantile(outputs, 0.05),
        "cos_mean_x_w": np.mean(weighted),
        "cos_p05_x_w": np.quantile(weighted, 0.05),
    }
    assert found == pytest.approx(expected, abs=2e-6)


def test_the_imatrix_stands_for_samples() -> None:
    few = Statistics(50, KNOWN.imatrix, np.empty((0, 24), np.float32))
    scale = np.sqrt(KNOWN.imatrix)
    found = measure(W, FITTED, few)
    assert found["cos_mean_x_w"] == pytest.approx(cosine(W * scale, FITTED * scale), abs=2e-6)
    assert "cos_mean_x" not in found


def test_without_calibration_only_the_weights_are_compared() -> None:
    assert set(measure(W, FITTED, None)) == {"rel_l2", "cos_mean_w", "cos_p05_w"}


def test_an_exact_fit_is_perfect() -> None:
    assert measure(W, W.copy(), KNOWN) == pytest.approx(PERFECT, abs=1e-6)


def test_zeros() -> None:
    zeros = np.zeros_like(W)
    assert measure(zeros, zeros, KNOWN) == PERFECT
    lost = measure(W, zeros, KNOWN)
    assert (lost["rel_l2"], lost["cos_mean_w"], lost["cos_mean_x"]) == (1.0, 0.0, 0.0)
    assert measure(zeros, W, None) == {"rel_l2": 1.0, "cos_mean_w": 0.0, "cos_p05_w": 0.0}


def test_another_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match="shape"):
        measure(W, W[:-1], None)
