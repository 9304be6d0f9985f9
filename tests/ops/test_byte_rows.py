"""BlockMatMul with activations of 8 bits: equal bits however many rows and on every instruction
set."""

from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from kit.gguf_blocks import OF_GGUF, random_blocks
from tamiz_ops import formats, reference

ISAS = tamiz_ops.cpu()["isas"]


def product(x, packed, bias, isa=None, **attributes) -> np.ndarray:
    inputs = [x, packed, None, bias]
    return tamiz_ops.run("BlockMatMul", inputs, isa=isa, threads=2, **attributes)[0]


def weight(n, k, bits) -> np.ndarray:
    quants, scales, minima = tamiz_ops.quantize_groups(random(n, k), bits)
    if bits == 8:
        return tamiz_ops.pack_int8(quants, scales)
    return tamiz_ops.pack_int4(quants, scales, minima)


@pytest.mark.parametrize("format", OF_GGUF, ids=lambda f: f.name)
@pytest.mark.parametrize(("n", "k"), [(40, 512), (1, 256), (100, 768)])
def test_bits_depend_neither_on_rows_nor_on_the_instruction_set(format, n, k) -> None:
    packed = formats.pack_blocks(format, random_blocks(format, n, k, 3, plain=True), k)
    x, bias = random(300, k), random(n, seed=2)
    attributes = {"format": format.name, "n": n, "k": k, "activation_bits": 8}
    expected = product(x[:17], packed, bias, "scalar", **attributes)
    whole = product(x, packed, bias, **attributes)
    for isa in ISAS:
        for rows in (1, 6, 7, 8, 12, 16, 17):
            found = product(x[:rows], packed, bias, isa, **attributes)
            np.testing.assert_array_equal(found, expected[:rows])
        np.testing.assert_array_equal(product(x, packed, bias, isa, **attributes), whole)
    np.testing.assert_array_equal(whole[:17], expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("n", "k"), [(50, 100), (33, 33), (16, 600)])
@pytest.mark.parametrize("bits", [4, 8])
def test_integers(isa, n, k, bits) -> None:
    packed = weight(n, k, bits)
    w = tamiz_ops.dequantize(packed, bits, n, k).astype(np.float64)
    x, bias = random(70, k), random(n, seed=2)
    attributes = {"bits": bits, "n": n, "k": k, "activation_bits": 8}
    found = product(x, packed, bias, isa, **attributes)
    exact = reference.in_bytes(x)
    # Sums of integers are exact; each addition of floats rounds by at most 2^-24 of all terms.
    terms = np.abs(exact) @ np.abs(w).T + np.abs(bias)
    tolerance = (
        (4 * (k // 32 + 1) + 4) * 2**-24 * (terms + 31 * np.abs(exact).max() * np.abs(w).max())
    )
    assert (np.abs(found - (exact @ w.T + bias)) <= tolerance).all()


@pytest.mark.parametrize("isa", ISAS)
def test_masked_inputs_count_nothing(isa) -> None:
    packed = weight(20, 128, 8)
    x, mask = random(33, 128), np.random.default_rng(3).integers(0, 2, (33, 4), np.uint8)
    attributes: dict[str, Any] = {"bits": 8, "n": 20, "k": 128, "activation_bits": 8}
    masked = tamiz_ops.run("BlockMatMul", [x, packed, mask, None], isa=isa, **attributes)[0]
    zeroed = x * np.repeat(mask, 32, axis=1)
    np.testing.assert_array_equal(masked, product(zeroed, packed, None, isa, **attributes))


@pytest.mark.parametrize("isa", ISAS)
def test_a_row_that_is_not_finite_spoils_no_other(isa) -> None:
    packed = weight(20, 64, 8)
    attributes = {"bits": 8, "n": 20, "k": 64, "activation_bits": 8}
    x = random(20, 64)
    before = product(x, packed, None, isa, **attributes)
    x[3, 5], x[4, 40] = np.inf, np.nan
    after = product(x, packed, None, isa, **attributes)
    assert np.isnan(after[3:5]).all()
    rest = [row for row in range(20) if row not in (3, 4)]
    np.testing.assert_array_equal(after[rest], before[rest])


def test_other_numbers_of_bits_are_refused() -> None:
    packed = weight(16, 32, 8)
    with pytest.raises(ValueError, match="'activation_bits' is 4, expected 8, 16 or 32"):
        product(random(1, 32), packed, None, bits=8, n=16, k=32, activation_bits=4)
