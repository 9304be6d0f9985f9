"""Encoders: every format that floats are fitted to, against its own decoder."""

from __future__ import annotations

import numpy as np
import pytest

from tamiz.api import dequantize, quantize
from tamiz_ops.formats import FITTED, find_format
from tamiz_ops.formats import quantize as quantize_format

pytestmark = pytest.mark.slow

#: Largest relative error of normally distributed weights, ‖W − Ŵ‖ / ‖W‖, with equal costs.
ERRORS = {
    "q8_0": 0.0049,
    "q6_k": 0.0170,
    "q5_k": 0.0346,
    "q5_1": 0.0336,
    "q5_0": 0.0406,
    "q4_k": 0.0705,
    "q4_1": 0.0700,
    "q4_units": 0.0700,
    "q4_0": 0.0820,
    "iq4_nl": 0.0750,
    "iq4_xs": 0.0760,
    "q3_k": 0.1460,
    "q2_k": 0.2640,
}


def normal(n: int, k: int) -> np.ndarray:
    """Outputs of different sizes."""
    random = np.random.default_rng(7)
    sizes = np.exp(random.standard_normal((n, 1)))
    return (sizes * random.standard_normal((n, k))).astype(np.float32)


def relative(weight: np.ndarray, made: np.ndarray, costs: np.ndarray | float = 1.0) -> float:
    """Weighted relative error, averaged over outputs."""
    rows = (costs * np.square(weight - made)).sum(axis=1) / (costs * np.square(weight)).sum(axis=1)
    return float(np.sqrt(rows.mean()))


def encoded(weight: np.ndarray, name: str, importance: np.ndarray | None = None) -> np.ndarray:
    """After encoding and decoding."""
    return dequantize(quantize(weight, name, importance), name, *weight.shape)


def test_all_formats_of_this_page_are_fitted() -> None:
    assert set(ERRORS) == set(FITTED)


@pytest.mark.parametrize("name", FITTED)
def test_the_error_is_small_and_below_that_of_rounding_to_nearest(name: str) -> None:
    weight, format = normal(40, 512), find_format(name)
    error = relative(weight, encoded(weight, name))
    rounded = dequantize(quantize_format(format, weight, search=False), name, *weight.shape)
    assert error < ERRORS[name]
    assert error < 0.97 * relative(weight, rounded)


@pytest.mark.parametrize("name", FITTED)
def test_importance_moves_the_error_to_inputs_that_cost_less(name: str) -> None:
    weight = normal(40, 512)
    costs = np.square(np.random.default_rng(3).standard_normal(512)).astype(np.float32)
    plain, weighted = encoded(weight, name), encoded(weight, name, costs)
    assert relative(weight, weighted, costs) < 0.97 * relative(weight, plain, costs)


@pytest.mark.parametrize("name", FITTED)
def test_the_bytes_depend_neither_on_threads_nor_on_other_outputs(name: str) -> None:
    weight = normal(2100, 512)
    packed = quantize(weight, name)
    assert np.array_equal(packed, quantize(weight, name, threads=2))
    assert np.array_equal(packed[:1], quantize(weight[:16], name))


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 40), (17, 300), (16, 256)])
def test_every_shape(name: str, n: int, k: int) -> None:
    weight = normal(n, k)
    made = encoded(weight, name)
    assert made.shape == (n, k)
    assert relative(weight, made) < 1.3 * ERRORS[name]


@pytest.mark.parametrize("name", FITTED)
def test_zeros_stay_zeros_and_an_unused_input_does_no_harm(name: str) -> None:
    weight = normal(16, 256)
    weight[3] = 0
    made = encoded(weight, name, np.zeros(256, np.float32))
    assert not made[3].any()
    importance = np.ones(256, np.float32)
    importance[:128] = 0
    assert np.isfinite(encoded(weight, name, importance)).all()


@pytest.mark.parametrize("name", ["q4_0", "q5_0", "q8_0", "q3_k", "q6_k", "iq4_nl"])
def test_a_decoded_weight_comes_back_nearly(name: str) -> None:
    once = encoded(normal(32, 512), name)
    assert relative(once, encoded(once, name)) < 0.2 * ERRORS[name]


def test_faults_are_named() -> None:
    weight = normal(4, 64)
    with pytest.raises(ValueError, match="format is 'q9', expected one of"):
        quantize(weight, "q9")
    with pytest.raises(ValueError, match="format is mxfp4, expected one of: q8_0"):
        quantize(weight, "mxfp4")
    with pytest.raises(ValueError, match="expected float32"):
        quantize(weight.astype(np.int32), "q4_k")
    with pytest.raises(ValueError, match=r"importance is \[3\], expected \[64\]"):
        quantize(weight, "q4_k", np.ones(3, np.float32))
    with pytest.raises(ValueError, match="above 65504"):
        quantize(np.float32(1e9) * weight, "q4_0")
    weight[1, 1] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        quantize(weight, "q4_0")
