"""BlockMatMul with a scale for 128 inputs: the formula, and equal bits on every instruction set."""

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from tamiz_ops import reference

ISAS = tamiz_ops.cpu()["isas"]
SIZES = [(1, 1), (17, 33), (50, 100), (33, 300), (100, 512)]  # n, k


def weight(n, k, seed=1) -> np.ndarray:
    """Quants of int8, and scales that come in fours."""
    rng = np.random.default_rng([seed, n, k])
    scales = rng.uniform(0.001, 0.02, (n, -(-k // 128))).astype(np.float16)
    groups = np.ascontiguousarray(np.repeat(scales, 4, axis=1)[:, : -(-k // 32)])
    return tamiz_ops.pack_int8(rng.integers(-127, 128, (n, k), dtype=np.int8), groups)


def product(x, packed, n, mask=None, bias=None, isa=None, **attributes) -> np.ndarray:
    inputs = [x, packed, mask, bias]
    attributes = {"bits": 8, "n": n, "k": x.shape[1], "activation_bits": 8} | attributes
    given = {"scale_inputs": 128, "isa": isa, "threads": 2} | attributes
    return tamiz_ops.run("BlockMatMul", inputs, **given)[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_formula(isa, n, k) -> None:
    x, packed, bias = random(9, k), weight(n, k), random(n, seed=2)
    found = product(x, packed, n, bias=bias, isa=isa)
    [expected] = reference.run(
        "BlockMatMul",
        [x, packed, None, bias],
        bits=8,
        n=n,
        k=k,
        activation_bits=8,
        scale_inputs=128,
    )
    w = tamiz_ops.dequantize(packed, 8, n, k).astype(np.float64)
    # Sums of integers are exact; a group takes three roundings, each of 2^-24 of all terms.
    terms = np.abs(reference.in_bytes(x, 128)) @ np.abs(w).T + np.abs(bias)
    np.testing.assert_array_less(np.abs(found - expected), (3 * (k // 128) + 5) * 2**-24 * terms)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_bits_depend_neither_on_rows_nor_on_the_instruction_set(isa, n, k) -> None:
    x, packed, bias = random(300, k), weight(n, k), random(n, seed=2)
    expected = product(x[:21], packed, n, bias=bias, isa="scalar")
    for rows in (1, 2, 4, 5, 16, 21):
        np.testing.assert_array_equal(
            product(x[:rows], packed, n, bias=bias, isa=isa), expected[:rows]
        )
    whole = product(x, packed, n, bias=bias, isa=isa)
    np.testing.assert_array_equal(whole[:21], expected)
    np.testing.assert_array_equal(product(x[250:], packed, n, bias=bias, isa=isa), whole[250:])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("block", [1, 5, 32])
def test_mask(isa, rows, block) -> None:
    n, k = 40, 300
    x, packed = random(rows, k), weight(n, k)
    rng = np.random.default_rng(3)
    mask = (rng.random((rows, -(-k // block))) < 0.4).astype(np.uint8)
    kept = np.where(np.repeat(mask, block, axis=1)[:, :k] != 0, x, np.float32(0))
    np.testing.assert_array_equal(
        product(x, packed, n, mask, isa=isa, block=block), product(kept, packed, n, isa=isa)
    )


@pytest.mark.parametrize("isa", ISAS)
def test_largest_quants_of_both_signs_do_not_overflow(isa) -> None:
    n, k = 16, 128
    ones = np.ones((n, 4), np.float16)
    for quant in (-127, 127):
        packed = tamiz_ops.pack_int8(np.full((n, k), quant, np.int8), ones)
        for sign in (-1, 1):
            x = np.full((3, k), sign * 127, np.float32)
            np.testing.assert_array_equal(
                product(x, packed, n, isa=isa), np.full((3, n), sign * 127 * quant * k)
            )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_row_nan(isa, value) -> None:
    n, k = 20, 200
    x, packed = random(5, k), weight(n, k)
    others = product(x, packed, n, isa=isa)
    x[2, 150] = value
    found = product(x, packed, n, isa=isa)
    assert np.isnan(found[2]).all()
    np.testing.assert_array_equal(np.delete(found, 2, 0), np.delete(others, 2, 0))


def test_inputs_of_16_bits_keep_their_own_scales() -> None:
    n, k = 40, 300
    x, packed = random(9, k), weight(n, k)
    np.testing.assert_array_equal(
        product(x, packed, n, activation_bits=16),
        product(x, packed, n, activation_bits=16, scale_inputs=32),
    )


def test_refuses_other_groups_and_weights() -> None:
    x = random(1, 64)
    with pytest.raises(ValueError, match="'scale_inputs' is 64, expected 32, or 128 with"):
        product(x, weight(16, 64), 16, scale_inputs=64)
    with pytest.raises(ValueError, match="expected 32, or 128 with a weight of format q8_0"):
        product(x, weight(16, 64), 16, bits=4)
