"""BlockMatMul, BlockGather and HeadShortlist with every weight format, on every instruction set."""

import re
from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from kit.gguf_blocks import OF_GGUF, random_blocks, random_factors
from tamiz_ops import formats, reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]
each_format = pytest.mark.parametrize("format", OF_GGUF, ids=lambda f: f.name)
each_isa = pytest.mark.parametrize("isa", ISAS)


def weight(format, n, k, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """A packed random weight and, of every element, |scale * value| + |minimum|, or more."""
    blocks, factors = random_blocks(format, n, k, seed, plain=True), random_factors(format, n)
    packed = formats.pack_blocks(format, blocks, k, factors)
    values = np.abs(formats.dequantize(format, packed, n, k).astype(np.float64))
    if format.minimum:
        parts = formats.unpack_parts(format, packed, n, k)
        minima = parts.minima.astype(np.float64)
        if parts.dmin is not None:
            minima *= np.repeat(parts.dmin.astype(np.float64), 256 // format.group, axis=1)
        values += 2 * np.abs(np.repeat(minima, format.group, axis=1))
    return packed, values


def bound(x, terms, bias) -> np.ndarray:
    """The most that y may differ from the reference.

    x is rounded to 1/32512 of the largest |x| of its group of 32, so it moves by at most half of
    that (1 % more for the rounding of the quotient). The float additions, four a group at most and
    of f16 and bf16 one an input, each round by at most 2^-24 of a partial sum, which the sum of all
    |terms| bounds.
    """
    x = np.abs(x.astype(np.float64))
    k = x.shape[-1]
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -k % 32)])
    largest = padded.reshape(*x.shape[:-1], -1, 32).max(-1)
    steps = np.repeat(largest, 32, axis=-1)[..., :k] / 32512
    additions = (k + 4) * 2**-24
    return 0.505 * steps @ terms.T + additions * (x @ terms.T + np.abs(bias))


@each_format
@each_isa
@pytest.mark.parametrize(("n", "k"), [(1, 256), (50, 768), (100, 512)])
@pytest.mark.parametrize("rows", [1, 3, 7, 8, 15, 16, 37])
def test_product(format, isa, n, k, rows) -> None:
    packed, terms = weight(format, n, k)
    x, bias = random(rows, k), random(n, scale=3)
    inputs, attributes = [x, packed, None, bias], {"format": format.name, "n": n, "k": k}
    (got,) = tamiz_ops.run("BlockMatMul", inputs, isa=isa, threads=2, **attributes)
    (expected,) = reference.run("BlockMatMul", inputs, **attributes)
    assert np.all(np.abs(got - expected) <= bound(x, terms, bias))


@each_format
@pytest.mark.parametrize("block", [None, 1, 8, 64])
def test_bits_depend_on_nothing_else(format, block) -> None:
    """Not on the instruction set, the threads, the other rows."""
    n, k, rows = 150, 1024, 21
    packed, _ = weight(format, n, k)
    x, bias = random(rows, k), random(n)
    mask = None
    if block:
        mask = np.random.default_rng(2).integers(0, 2, (rows, k // block), dtype=np.uint8)
    attributes = {"format": format.name, "n": n, "k": k, "block": block or 32}
    inputs = [x, packed, mask, bias]
    (expected,) = tamiz_ops.run("BlockMatMul", inputs, isa="scalar", **attributes)
    for isa in ISAS:
        for threads in (1, 3):
            (got,) = tamiz_ops.run("BlockMatMul", inputs, isa=isa, threads=threads, **attributes)
            np.testing.assert_array_equal(got, expected, err_msg=isa)
        for first, end in ((0, 1), (9, 10), (3, 5), (14, 21)):
            part = [x[first:end], packed, None if mask is None else mask[first:end], bias]
            (got,) = tamiz_ops.run("BlockMatMul", part, isa=isa, **attributes)
            np.testing.assert_array_equal(got, expected[first:end], err_msg=f"{isa} {first}")


@each_format
@each_isa
def test_a_mask_hides_what_is_not_finite(format, isa) -> None:
    n, k = 20, 512
    packed, _ = weight(format, n, k)
    x = random(1, k)
    mask = np.ones((1, k), np.uint8)
    mask[0, 7], mask[0, 40:300] = 0, 0
    clean = np.where(mask, x, 0).astype(np.float32)
    x[0, 7], x[0, 50] = np.nan, np.inf
    hidden, plain = (
        tamiz_ops.run("BlockMatMul", inputs, isa=isa, format=format.name, n=n, k=k, block=1)[0]
        for inputs in ([x, packed, mask], [clean, packed, None])
    )
    np.testing.assert_array_equal(hidden, plain)


@each_format
def test_gather_gives_the_values_bit_for_bit(format) -> None:
    n, k = 37, 768
    packed = formats.pack_blocks(format, random_blocks(format, n, k), k)
    ids = np.array([[0, 36, 5], [17, 17, 1]], np.int64)
    (got,) = tamiz_ops.run("BlockGather", [ids, packed], format=format.name, n=n, k=k)
    expected = formats.dequantize(format, packed, n, k)[ids]
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("name", ["f16", "bf16"])
@each_isa
def test_floats_take_any_number_of_inputs(name, isa) -> None:
    n, k = 19, 45
    format = formats.FORMATS[name]
    packed, terms = weight(format, n, k)
    x = random(5, k)
    (got,) = tamiz_ops.run("BlockMatMul", [x, packed], isa=isa, format=name, n=n, k=k)
    (expected,) = reference.run("BlockMatMul", [x, packed], format=name, n=n, k=k)
    assert np.all(np.abs(got - expected) <= bound(x, terms, 0))


@each_format
@each_isa
@pytest.mark.parametrize("masked", [False, True])
def test_the_tiles_of_a_shortlist_have_the_bits_of_the_product(format, isa, masked) -> None:
    n, k, dims = 200, 512, 32
    packed, _ = weight(format, n, k)
    x, bias, offset = random(1, k), random(n), random(n, seed=3)
    mask = np.random.default_rng(4).integers(0, 2, (1, k), dtype=np.uint8) if masked else None
    scales = np.full((dims, k // 32), 0.01, np.float16)
    project = tamiz_ops.pack_int8(
        np.random.default_rng(5).integers(-9, 9, (dims, k), dtype=np.int8), scales
    )
    halves = np.full((2, n, 1), 0.01, np.float16)
    sketch = tamiz_ops.pack_int4(np.full((n, dims), 3, np.uint8), *halves)
    attributes = {"format": format.name, "n": n, "k": k, "block": 1}
    (exact,) = tamiz_ops.run("BlockMatMul", [x, packed, mask, bias], isa=isa, **attributes)
    inputs = [x, packed, mask, bias, project, sketch, offset]
    more: dict[str, Any] = {"dims": dims, "tiles": 5, "estimate": 0}
    (listed,) = tamiz_ops.run("HeadShortlist", inputs, isa=isa, **attributes, **more)
    chosen = np.isfinite(listed)
    assert 4 * 16 <= np.count_nonzero(chosen) <= 5 * 16
    np.testing.assert_array_equal(listed[chosen], exact[chosen])


@pytest.mark.parametrize(("name", "bits", "scale_bits"), [("q4_1", 4, 16), ("q8_0", 8, 16)])
def test_the_integer_formats_have_two_names(name, bits, scale_bits) -> None:
    n, k = 40, 320
    packed, _ = weight(formats.FORMATS[name], n, k)
    x = random(2, k)
    (one,) = tamiz_ops.run("BlockMatMul", [x, packed], format=name, n=n, k=k)
    (other,) = tamiz_ops.run("BlockMatMul", [x, packed], bits=bits, n=n, k=k)
    np.testing.assert_array_equal(one, other)


X, W = np.zeros((1, 512), np.float32), np.zeros((1, 4608), np.uint8)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([X, W], {"n": 1, "k": 512}, "attribute 'bits' is 0, expected 4 or 8"),
        ([X, W], {"format": "q9", "n": 1, "k": 512}, "'format' is 'q9', expected one of: q4_1"),
        (
            [X, W],
            {"format": "q4_k", "bits": 4, "n": 1, "k": 512},
            "attribute 'bits' is 4, expected none beside 'format'",
        ),
        (
            [X, W],
            {"format": "q4_k", "n": 1, "k": 500},
            "attribute 'k' is 500, expected a multiple of 256 for format q4_k",
        ),
        (
            [X, W],
            {"format": "q6_k", "n": 1, "k": 512},
            "expected [1, 6720] (tiles and tile bytes of n = 1, k = 512, format = q6_k)",
        ),
        ([X, W], {"format": "q4_k", "n": 17, "k": 512}, "expected [2, 4608]"),
        ([X[:, :256], W], {"format": "q4_k", "n": 1, "k": 512}, "expected k = 512"),
    ],
)
@pytest.mark.parametrize("op", ["BlockMatMul", "BlockGather"])
def test_what_does_not_fit_is_named(op, inputs, attributes, message) -> None:
    if op == "BlockGather":
        if "k = 512" in message and "format" not in message:
            return
        inputs = [np.zeros(1, np.int64), inputs[1]]
    with pytest.raises(Exception, match=re.escape(message)):
        tamiz_ops.run(op, inputs, **attributes)
