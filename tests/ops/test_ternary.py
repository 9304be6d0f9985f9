"""TernaryMatMul on every instruction set against the float64 reference."""

import re

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import tamiz_ops
from kit.arrays import random
from kit.ops_graphs import model, node, session, value
from tamiz_ops import reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]
SIZES = [(1, 1), (17, 33), (1, 576), (100, 31), (192, 576), (70, 1100)]  # n, k


def weight(n, k, seed=0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels, scales and units at random, the packed weight, and |w|."""
    rng = np.random.default_rng([seed, n, k])
    levels = rng.integers(-1, 2, (n, k), dtype=np.int8)
    scales = rng.uniform(0.2, 1, (n, -(-k // 32))).astype(np.float16)
    units = rng.uniform(0.001, 3, n).astype(np.float32)
    spread = np.repeat(scales.astype(np.float64), 32, axis=1)[:, :k]
    size = np.abs(levels * spread * units[:, None])
    return tamiz_ops.pack_ternary(levels, scales), units, size


def bound(x, size) -> np.ndarray:
    """The most that y may differ from the reference.

    x moves by at most half of 1/32512 of the largest |x| of its group, 1 % more for the rounding of
    the quotient. Of the float operations each rounds by at most 2^-24 of a partial sum: two a
    group, and the factor.
    """
    groups = -(-x.shape[-1] // 32)
    x = np.abs(x.astype(np.float64))
    padded = np.pad(x, [(0, 0), (0, groups * 32 - x.shape[1])])
    largest = np.repeat(padded.reshape(len(x), groups, 32).max(-1), 32, axis=1)[:, : x.shape[1]]
    return 0.505 / 32512 * largest @ size.T + (2 * groups + 5) * 2**-24 * (x @ size.T)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_packing_round_trip(n, k) -> None:
    rng = np.random.default_rng(0)
    levels = rng.integers(-1, 2, (n, k), dtype=np.int8)
    scales = rng.uniform(0, 1, (n, -(-k // 32))).astype(np.float16)
    packed = tamiz_ops.pack_ternary(levels, scales)
    assert packed.shape == (-(-n // 16), -(-k // 32) * 160)
    for got, expected in zip(tamiz_ops.unpack_ternary(packed, n, k), (levels, scales), strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)


def test_every_byte_is_where_the_header_says() -> None:
    levels, scales = np.zeros((17, 40), np.int8), np.zeros((17, 2), np.float16)
    levels[16, 32 + 7], scales[16, 1] = -1, 1.5  # tile 1, group 1, vector 0, input 7
    packed = tamiz_ops.pack_ternary(levels, scales)[1, 160:]
    words = packed[:128].view("<u4").reshape(2, 16)
    assert words[0, 0] == 1 << 16 + 4 + 2 + 1
    assert np.count_nonzero(words) == 1
    np.testing.assert_array_equal(packed[128:].view(np.float16), [1.5] + [0] * 15)


def test_pack_refuses_what_it_cannot_hold() -> None:
    levels, scales = np.ones((3, 40), np.int8), np.ones((3, 2), np.float16)
    with pytest.raises(ValueError, match="levels holds other values than -1, 0 and 1"):
        tamiz_ops.pack_ternary(2 * levels, scales)
    with pytest.raises(ValueError, match=r"scales is float16 \[3, 1\], expected float16 \[3, 2\]"):
        tamiz_ops.pack_ternary(levels, scales[:, :1])
    with pytest.raises(ValueError, match=r"packed is uint8 \[1, 160\], expected uint8 \[1, 320\]"):
        tamiz_ops.unpack_ternary(np.zeros((1, 160), np.uint8), 3, 40)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 17, 130])
def test_product(isa, n, k, rows) -> None:
    packed, units, size = weight(n, k)
    x, bias = random(rows, k), random(n, scale=3, seed=1)
    inputs = [x, packed, units, None, bias]
    [got] = tamiz_ops.run("TernaryMatMul", inputs, isa=isa, threads=2, n=n, k=k)
    [expected] = reference.run("TernaryMatMul", inputs, n=n, k=k)
    assert got.dtype == np.float32
    assert np.all(np.abs(got - expected) <= bound(x, size) + 2**-23 * np.abs(bias))


@settings(max_examples=30)
@given(st.integers(1, 70), st.integers(1, 200), st.integers(1, 20), st.integers(1, 70), st.data())
def test_any_size_and_mask_on_every_instruction_set(n, k, rows, block, data) -> None:
    density = data.draw(st.floats(0, 1))
    packed, units, size = weight(n, k)
    x = random(rows, k)
    mask = np.random.default_rng(3).random((rows, -(-k // block))) < density
    inputs = [x, packed, units, mask.astype(np.uint8) * 255, random(n, seed=1)]
    attributes = {"n": n, "k": k, "block": block}
    [expected] = reference.run("TernaryMatMul", inputs, **attributes)
    results = [tamiz_ops.run("TernaryMatMul", inputs, isa=isa, **attributes)[0] for isa in ISAS]
    for result in results:
        np.testing.assert_array_equal(result, results[0])
    assert np.all(np.abs(results[0] - expected) <= bound(x, size) + 2**-22)


@pytest.mark.parametrize("masked", [False, True])
def test_bits_depend_on_nothing_else(masked) -> None:
    """Not on the instruction set, the threads, the other rows."""
    n, k, rows = 300, 600, 133
    packed, units, _ = weight(n, k)
    x, bias = random(rows, k), random(n, seed=1)
    mask = np.random.default_rng(2).integers(0, 2, (rows, 19), dtype=np.uint8) if masked else None

    def run(part, **how) -> np.ndarray:
        inputs = [x[part], packed, units, None if mask is None else mask[part], bias]
        return tamiz_ops.run("TernaryMatMul", inputs, n=n, k=k, **how)[0]

    expected = run(slice(None), isa="scalar")
    for isa in ISAS:
        for threads in (1, 2, 5):
            np.testing.assert_array_equal(run(slice(None), isa=isa, threads=threads), expected)
        for part in (slice(0, 1), slice(9, 10), slice(130, 133)):
            np.testing.assert_array_equal(run(part, isa=isa), expected[part])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_row_nan_unless_masked(isa, value) -> None:
    n, k = 40, 70
    packed, units, _ = weight(n, k)
    for rows in (1, 3):
        x = random(rows, k)
        x[0, 65] = value
        mask = np.ones((rows, k), np.uint8)
        mask[0, 65] = 0
        run = {"n": n, "k": k, "isa": isa, "block": 1}
        [y] = tamiz_ops.run("TernaryMatMul", [x, packed, units], **run)
        assert np.isnan(y[0]).all()
        assert np.isfinite(y[1:]).all()
        [y] = tamiz_ops.run("TernaryMatMul", [x, packed, units, mask], **run)
        assert np.isfinite(y).all()


def test_metrics_count_the_bytes_that_a_mask_saves() -> None:
    n, k = 32, 96
    packed, units, _ = weight(n, k)
    made = node("TernaryMatMul", ["x", "w", "u", "mask"], ["y"], "mm", n=n, k=k, block=16)
    inputs, constants = ["x", value("mask", np.uint8)], {"w": packed, "u": units}
    runs = session(model([made], inputs, ["y"], constants))
    mask = np.array([[1, 0, 0, 0, 1, 1]], np.uint8)  # one vector, none, both
    runs.run(None, {"x": random(1, k), "mask": mask})
    counted = tamiz_ops.metrics(runs)["mm"]
    assert counted["matmul.bytes_dense"] == 2 * 3 * 160
    assert counted["matmul.bytes_read"] == 2 * (64 + 32 + 2 * 64 + 32)


N, K = 20, 40
X, BIAS = random(2, K), np.zeros(N, np.float32)
PACKED, UNITS, _ = weight(N, K)
GOOD = {"n": N, "k": K}


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([X[:, :39], PACKED, UNITS], GOOD, "x has shape [2, 39], expected k = 40"),
        ([X, PACKED[:1], UNITS], GOOD, "weight has shape [1, 320], expected [2, 320]"),
        ([X, PACKED, UNITS[1:]], GOOD, "units has shape [19], expected [20]"),
        ([X, PACKED], GOOD, "input units is missing"),
        ([X, PACKED, UNITS, PACKED[:, :1]], GOOD, "mask has shape [2, 1], expected [2, 2]"),
        ([X, PACKED, UNITS, None, BIAS[1:]], GOOD, "bias has shape [19], expected [20]"),
        ([X, PACKED, UNITS], {**GOOD, "block": 0}, "attribute 'block' is 0, expected 1 to"),
        ([X, PACKED, UNITS], {"n": N}, "'k' is missing"),
    ],
)
def test_what_does_not_fit_is_named(inputs, attributes, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tamiz_ops.run("TernaryMatMul", inputs, **attributes)
