"""PopcountMatMul on every instruction set against the float64 reference."""

import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import tamiz_ops
from kit.arrays import random
from kit.ops_graphs import model, node, session
from tamiz_ops import reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]
SIZES = [(1, 1), (17, 33), (1, 576), (100, 31), (192, 576), (70, 1100)]  # n, k


def weight(n, k) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The packed weight, units, and |w|."""
    rng = np.random.default_rng([n, k])
    levels = rng.integers(-1, 2, (n, k), dtype=np.int8)
    scales = rng.uniform(0.2, 1, (n, -(-k // 32))).astype(np.float16)
    units = rng.uniform(0.001, 3, n).astype(np.float32)
    spread = np.repeat(scales.astype(np.float64), 32, axis=1)[:, :k]
    return tamiz_ops.pack_ternary(levels, scales), units, np.abs(levels * spread * units[:, None])


def bound(x, size) -> np.ndarray:
    """The most that y may differ: the counts are exact, gamma is a sum of 32 and a few operations
    more, two a group for the sums over groups; each rounds by at most 2^-24 of a partial sum, which
    the largest |x| of each group bounds."""
    groups = -(-x.shape[-1] // 32)
    padded = np.pad(np.abs(x), [(0, 0), (0, groups * 32 - x.shape[1])]).astype(np.float64)
    largest = np.repeat(padded.reshape(len(x), groups, 32).max(-1), 32, axis=1)[:, : x.shape[1]]
    return (40 + 2 * groups) * 2**-24 * (largest @ size.T)


def check(inputs, size, **attributes) -> np.ndarray:
    """All instruction sets give the same bits, close to the reference."""
    [expected] = reference.run("PopcountMatMul", inputs, **attributes)
    results = [
        tamiz_ops.run("PopcountMatMul", inputs, isa=isa, threads=2, **attributes)[0] for isa in ISAS
    ]
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    bias = inputs[4] if len(inputs) > 4 else np.zeros(1)
    assert np.all(np.abs(results[0] - expected) <= bound(inputs[0], size) + 2**-23 * np.abs(bias))
    return results[0]


@pytest.mark.parametrize("epsilon", [0.0, 0.75, 2.0])
@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("rows", [1, 3, 130])
def test_product(n, k, rows, epsilon) -> None:
    packed, units, size = weight(n, k)
    x, bias = random(rows, k), random(n, scale=3, seed=1)
    check([x, packed, units, None, bias], size, n=n, k=k, epsilon=epsilon)


@settings(max_examples=30)
@given(st.integers(1, 70), st.integers(1, 200), st.integers(1, 9), st.integers(1, 70), st.data())
def test_any_size_and_mask(n, k, rows, block, data) -> None:
    packed, units, size = weight(n, k)
    x = random(rows, k) * (np.random.default_rng(1).random((rows, k)) < data.draw(st.floats(0, 1)))
    mask = np.random.default_rng(3).random((rows, -(-k // block))) < data.draw(st.floats(0, 1))
    inputs = [x.astype(np.float32), packed, units, mask.astype(np.uint8)]
    epsilon = data.draw(st.sampled_from([0.0, 0.5, 1.5]))
    check(inputs, size, n=n, k=k, block=block, epsilon=epsilon)


def test_the_four_terms() -> None:
    """pos·pos + neg·neg − pos·neg − neg·pos, and zeros on either side count nothing."""
    a = np.array([1, 1, 1, -1, -1, -1, 0, 0, 0] * 3, np.float32)
    t = np.array([1, -1, 0] * 9, np.int8)
    for x, level in ((a, t), (a, np.roll(t, 1)), (np.abs(a), t), (-a, np.sign(a).astype(np.int8))):
        packed = tamiz_ops.pack_ternary(level[None], np.ones((1, 1), np.float16))
        inputs = [x[None], packed, np.ones(1, np.float32)]
        for isa in ISAS:
            [y] = tamiz_ops.run("PopcountMatMul", inputs, isa=isa, n=1, k=27)
            assert y[0, 0] == x @ level


def test_activations_that_are_levels_lose_nothing() -> None:
    """x = ± one size a group, or 0: the product is that of TernaryMatMul."""
    n, k = 70, 320
    packed, units, size = weight(n, k)
    levels = np.random.default_rng(5).integers(-1, 2, (4, k))
    x = (levels * np.repeat(np.exp2(np.arange(10) - 5), 32)).astype(np.float32)
    y = check([x, packed, units], size, n=n, k=k, epsilon=0.5)
    [exact] = reference.run("TernaryMatMul", [x, packed, units], n=n, k=k)
    assert np.all(np.abs(y - exact) <= bound(x, size))


def test_a_row_that_is_too_dense_is_exact_and_the_others_are_packed() -> None:
    n, k, rows = 70, 256, 140
    packed, units, _ = weight(n, k)
    x, keep = random(rows, k), np.linspace(0, 1, rows)[:, None]
    x = x * (np.random.default_rng(1).random((rows, k)) < keep).astype(np.float32)
    attributes: dict[str, Any] = {"n": n, "k": k}
    [exact] = tamiz_ops.run("TernaryMatMul", [x, packed, units], **attributes)
    [counted] = tamiz_ops.run("PopcountMatMul", [x, packed, units], **attributes)
    dense = np.count_nonzero(x, axis=1) > 0.4 * k
    assert 0 < dense.sum() < rows
    for isa in ISAS:
        for part in (slice(None), slice(3, 4), slice(139, 140)):
            [y] = tamiz_ops.run(
                "PopcountMatMul", [x[part], packed, units], isa=isa, density=0.4, **attributes
            )
            expected = np.where(dense[part, None], exact[part], counted[part])
            np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("density", [0.0, 1.0])
def test_what_is_not_finite_makes_its_row_nan_unless_masked(value, density) -> None:
    n, k = 40, 70
    packed, units, _ = weight(n, k)
    x = random(3, k)
    x[0, 65] = value
    mask = np.ones((3, k), np.uint8)
    mask[0, 65] = 0
    for isa in ISAS:
        run = {"n": n, "k": k, "isa": isa, "block": 1, "density": density}
        [y] = tamiz_ops.run("PopcountMatMul", [x, packed, units], **run)
        assert np.isnan(y[0]).all()
        assert np.isfinite(y[1:]).all()
        [y] = tamiz_ops.run("PopcountMatMul", [x, packed, units, mask], **run)
        assert np.isfinite(y).all()


@pytest.mark.parametrize("scale", [1e-45, 1e-30, 1e37])
def test_extreme_activations(scale) -> None:
    packed, units, size = weight(20, 96)
    x = np.clip(random(2, 96), -3, 3) * np.float32(scale)
    got = [
        tamiz_ops.run("PopcountMatMul", [x, packed, units], isa=isa, n=20, k=96)[0] for isa in ISAS
    ]
    for y in got:
        np.testing.assert_array_equal(y, got[0])
        assert np.isfinite(y).all()
    if scale > 1e-45:
        [expected] = reference.run("PopcountMatMul", [x, packed, units], n=20, k=96)
        assert np.all(np.abs(got[0] - expected) <= bound(x, size))


def test_metrics_tell_density_and_who_was_packed() -> None:
    n, k = 32, 64
    packed, units, _ = weight(n, k)
    made = node("PopcountMatMul", ["x", "w", "u"], ["y"], "mm", n=n, k=k, density=0.5)
    runs = session(model([made], ["x"], ["y"], {"w": packed, "u": units}))
    x = np.ones((3, k), np.float32)
    x[0, 8:], x[1, 32:] = 0, 0
    runs.run(None, {"x": x})
    counted = tamiz_ops.metrics(runs)["mm"]
    assert counted["pack.enabled"] == 3
    assert counted["pack.active"] == 2
    assert counted["pack.nonzero"] == 8 + 32 + 64
    assert counted["pack.inputs"] == 3 * 64


X, (PACKED, UNITS, _) = random(2, 40), weight(20, 40)
GOOD = {"n": 20, "k": 40}


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([X[:, :39], PACKED, UNITS], GOOD, "x has shape [2, 39], expected k = 40"),
        ([X, PACKED[:1], UNITS], GOOD, "weight has shape [1, 320], expected [2, 320]"),
        ([X, PACKED, UNITS], {**GOOD, "epsilon": -1.0}, "attribute 'epsilon' is negative"),
        ([X, PACKED, UNITS], {**GOOD, "density": 1.5}, "'density' is outside of 0 to 1"),
        ([X, PACKED, UNITS], {**GOOD, "density": float("nan")}, "'density' is outside of 0 to 1"),
    ],
)
def test_what_does_not_fit_is_named(inputs, attributes, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tamiz_ops.run("PopcountMatMul", inputs, **attributes)
