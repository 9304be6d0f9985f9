"""SeedLM's words: the fit, and the products that regenerate weights, on every instruction set."""

import re

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from tamiz_ops import reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]
NOTHING = np.zeros(64, np.uint8)


def random_words(n, k, bits, seed=0) -> np.ndarray:
    """Every word is possible but for its scale: 16 bits that are a number from 2^-8 to 2^-6."""
    tiles, groups = -(-n // 16), -(-k // 32)
    rng = np.random.default_rng([n, k, bits, seed])
    words = rng.integers(0, 1 << 8 * bits, (tiles, groups, 4, 16), dtype=np.uint32)
    halves = rng.uniform(2**-8, 2**-6, (tiles, groups, 16)).astype(np.float16).view(np.uint16)
    for b in range(4):
        nibble = (halves.astype(np.uint32) >> 4 * b & 15) << 4
        words[:, :, b] = words[:, :, b] & ~np.uint32(0xF0) | nibble
    if bits == 4:
        return words.astype("<u4").view(np.uint8).reshape(tiles, -1)
    low = words.astype("<u2").view(np.uint8).reshape(tiles, groups, 4, 32)
    high = (words >> 16).astype(np.uint8)
    return np.concatenate([low, high], axis=3).reshape(tiles, -1)


def product(
    x, packed, n, k, bits, *, isa=None, threads=2, mask=None, bias=None, deltas=None
) -> tuple[np.ndarray, np.ndarray]:
    none = NOTHING, np.zeros(-(-n // 16) + 1, np.int64)
    inputs = [x, *(deltas or none), None, None, mask, bias, None, packed]
    attributes = {"bits": 4, "n": n, "k": k, "base": "seedlm", "base_bits": bits}
    got = tamiz_ops.run("SeedDeltaMatMul", inputs, isa=isa, threads=threads, **attributes)[0]
    return got, reference.run("SeedDeltaMatMul", inputs, **attributes)[0]


@pytest.mark.parametrize("bits", [3, 4])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 33), (100, 64), (64, 100), (70, 600)])
def test_product(bits, n, k) -> None:
    packed, bias = random_words(n, k, bits), random(n, seed=5)
    norms = np.linalg.norm(tamiz_ops.unpack_seedlm(packed, bits, n, k), axis=1)
    for rows in (1, 3, 40):
        x = random(rows, k, seed=4)
        results = [product(x, packed, n, k, bits, isa=isa, bias=bias) for isa in ISAS]
        # x is rounded to 2^-16 of its largest in a group
        limit = 2e-5 * np.linalg.norm(x, axis=-1, keepdims=True) * norms + 2e-6 * np.abs(bias)
        assert np.all(np.abs(results[0][0] - results[0][1]) <= limit)
        for got, _ in results[1:]:
            np.testing.assert_array_equal(got, results[0][0])


@pytest.mark.parametrize("bits", [3, 4])
def test_bits_do_not_depend_on_threads_other_rows_or_zeros(bits) -> None:
    n, k = 90, 300
    packed, x = random_words(n, k, bits), random(50, k, seed=4)
    mask = np.random.default_rng(0).integers(0, 2, (50, -(-k // 32)), dtype=np.uint8)
    clean = np.where(np.repeat(mask, 32, axis=1)[:, :k], x, 0).astype(np.float32)
    expected = product(clean, packed, n, k, bits, isa="scalar", threads=1)[0]
    for isa in ISAS:
        got = product(x, packed, n, k, bits, isa=isa, mask=mask)[0]
        np.testing.assert_array_equal(got, expected)
        one = product(x[7:8], packed, n, k, bits, isa=isa, mask=mask[7:8])[0]
        np.testing.assert_array_equal(one[0], expected[7])


def test_the_residual_is_added() -> None:
    n, k = 40, 70
    everything = np.ones((n, k), bool), np.ones((3, 3), bool)
    levels = tamiz_ops.quantize_groups(random(n, k, seed=2, scale=0.1), 4)
    deltas = tamiz_ops.pack_deltas(*everything, *levels)
    packed, x = random_words(n, k, 4), random(3, k, seed=4)
    results = [product(x, packed, n, k, 4, isa=isa, deltas=deltas) for isa in ISAS]
    np.testing.assert_allclose(results[0][0], results[0][1], atol=2e-3)
    for got, _ in results[1:]:
        np.testing.assert_array_equal(got, results[0][0])


@pytest.mark.parametrize(("bits", "low", "high"), [(3, 0.20, 0.24), (4, 0.10, 0.12)])
def test_the_fit_finds_what_random_bases_can_give(bits, low, high) -> None:
    """Of normal weights; int4 and int3 round-to-nearest have 0.10 at 4.5 and 0.23 at 3.5 bits."""
    weight = random(24, 72, seed=bits)
    packed = [tamiz_ops.fit_seedlm(weight, bits, isa=isa) for isa in ISAS]
    for other in packed[1:]:
        np.testing.assert_array_equal(other, packed[0])
    made = tamiz_ops.unpack_seedlm(packed[0], bits, 24, 72)
    assert packed[0].nbytes == 2 * 3 * 64 * bits
    assert low < np.linalg.norm(made - weight) / np.linalg.norm(weight) < high


def test_what_the_format_can_say_is_found_again() -> None:
    weight = tamiz_ops.unpack_seedlm(random_words(16, 64, 3), 3, 16, 64)
    made = tamiz_ops.unpack_seedlm(tamiz_ops.fit_seedlm(weight, 3), 3, 16, 64)
    # a scale is found where the first one tried gives nearly all of the coefficients
    assert np.median(np.abs(made - weight).max(axis=1)) < 1e-6
    np.testing.assert_array_equal(
        tamiz_ops.unpack_seedlm(tamiz_ops.fit_seedlm(0 * weight, 3), 3, 16, 64), 0
    )


def test_inputs_that_matter_get_more() -> None:
    weight, root_m = random(32, 64), np.ones(64, np.float32)
    root_m[::4] = 8
    made = tamiz_ops.unpack_seedlm(tamiz_ops.fit_seedlm(weight, 3, root_m), 3, 32, 64)
    plain = tamiz_ops.unpack_seedlm(tamiz_ops.fit_seedlm(weight, 3), 3, 32, 64)
    error = np.square(made - weight).mean(axis=0)
    assert error[::4].mean() < 0.1 * error[1::4].mean()
    weighted = np.square(root_m) * np.square(plain - weight)
    assert (np.square(root_m) * np.square(made - weight)).sum() < 0.5 * weighted.sum()


@pytest.mark.parametrize(
    ("weight", "bits", "root_m", "message"),
    [
        (random(4, 8), 5, None, "bits is 5, expected 3 or 4"),
        (random(4, 8), 3, np.ones(7, np.float32), "weight is no [N, K] with root_m [K]"),
        (random(4, 0), 3, None, "N and K at least 1"),
        (random(4, 8, scale=1e30), 3, None, "a group needs a scale above 65504"),
    ],
)
def test_what_cannot_be_fitted_is_named(weight, bits, root_m, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tamiz_ops.fit_seedlm(weight, bits, root_m)


@pytest.mark.parametrize(
    ("packed", "attributes", "message"),
    [
        (None, {}, "input seedlm is missing, the base is seedlm"),
        (random_words(20, 40, 4), {"base": "none"}, "input seedlm is there, the base is none"),
        (random_words(20, 40, 3), {}, "seedlm has shape [2, 384], expected [2, 512]"),
        (random_words(20, 40, 4), {"base_bits": 5}, "'base_bits' is 5, expected 3 or 4"),
    ],
)
def test_what_does_not_fit_is_named(packed, attributes, message) -> None:
    inputs = [random(2, 40), NOTHING, np.zeros(3, np.int64), *[None] * 5, packed]
    given = {"bits": 4, "n": 20, "k": 40, "base": "seedlm", "base_bits": 4, **attributes}
    with pytest.raises(ValueError, match=re.escape(message)):
        tamiz_ops.run("SeedDeltaMatMul", inputs, **given)
