"""BlockMatMul and BlockGather on every instruction set against the float64 reference."""

import re
from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from kit.block_weights import spread, weight
from kit.ops_graphs import model, node, session, value
from tamiz_ops import reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]
FORMATS = [(4, 16), (4, 8), (8, 16)]  # bits, scale_bits
SIZES = [(1, 1), (17, 33), (1, 576), (100, 31), (192, 576), (70, 1100)]  # n, k


def bound(x, terms) -> np.ndarray:
    """The most that y may differ from the reference.

    x is rounded to 1/32512 of the largest |x| of its group, so it moves by at most half of that
    (1 % more for the rounding of the quotient). The float additions, two a group, each round by at
    most 2^-24 of a partial sum, which the sum of all |terms| bounds.
    """
    k = x.shape[-1]
    groups = -(-k // 32)
    x = np.abs(x.astype(np.float64))
    padded = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, groups * 32 - k)])
    largest = padded.reshape(*x.shape[:-1], groups, 32).max(-1)
    steps = spread(largest, k) / 32512
    return 0.505 * steps @ terms.T + (2 * groups + 4) * 2**-24 * (x @ terms.T)


def check(inputs, terms, *, isa, threads=2, **attributes) -> np.ndarray:
    got = tamiz_ops.run("BlockMatMul", inputs, isa=isa, threads=threads, **attributes)[0]
    expected = reference.run("BlockMatMul", inputs, **attributes)[0]
    assert got.dtype == np.float32
    assert got.shape == expected.shape
    x, bias = inputs[0], inputs[3] if len(inputs) > 3 else None
    limit = bound(x, terms)
    if bias is not None:  # it is the first partial sum
        limit = limit + (2 * -(-x.shape[-1] // 32) + 4) * 2**-24 * np.abs(bias)
    assert np.all(np.abs(got - expected) <= limit)
    return got


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "scale_bits"), FORMATS)
@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 12, 17, 258])
def test_product(isa, bits, scale_bits, n, k, rows) -> None:
    packed, terms = weight(bits, n, k, scale_bits)
    x, bias = random(rows, k), random(n, scale=3, seed=1)
    check([x, packed, None, bias], terms, isa=isa, bits=bits, scale_bits=scale_bits, n=n, k=k)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "scale_bits"), FORMATS)
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("block", [1, 2, 3, 4, 8, 12, 16, 32, 64, 1000])
def test_mask(isa, bits, scale_bits, rows, block) -> None:
    n, k = 40, 333
    packed, terms = weight(bits, n, k, scale_bits)
    for density in (0.0, 0.1, 0.5, 1.0):
        rng = np.random.default_rng(int(10 * density))
        mask = (rng.random((rows, -(-k // block))) < density).astype(np.uint8) * 255
        y = check(
            [random(rows, k), packed, mask],
            terms,
            isa=isa,
            bits=bits,
            scale_bits=scale_bits,
            n=n,
            k=k,
            block=block,
        )
        if density == 0:
            assert not y.any()


@pytest.mark.parametrize("isa", ISAS)
def test_a_mask_hides_what_is_not_finite(isa) -> None:
    n, k = 20, 64
    packed, _ = weight(4, n, k)
    x = random(1, k)
    mask = np.ones((1, k), np.uint8)
    mask[0, 7], mask[0, 40:] = 0, 0
    clean = np.where(mask, x, 0).astype(np.float32)
    x[0, 7], x[0, 50] = np.nan, np.inf
    got = [
        tamiz_ops.run("BlockMatMul", [values, packed, m], isa=isa, bits=4, n=n, k=k, block=1)[0]
        for values, m in ((x, mask), (clean, None))
    ]
    np.testing.assert_array_equal(got[0], got[1])


@pytest.mark.parametrize(("bits", "scale_bits"), FORMATS)
@pytest.mark.parametrize("block", [None, 1, 8])
def test_bits_depend_on_nothing_else(bits, scale_bits, block) -> None:
    """Not on the instruction set, the threads, the other rows."""
    n, k, rows = 300, 600, 261
    packed, _ = weight(bits, n, k, scale_bits)
    x, bias = random(rows, k), random(n, seed=1)
    mask = None
    if block:
        mask = np.random.default_rng(2).integers(0, 2, (rows, -(-k // block)), dtype=np.uint8)
    attributes = {"bits": bits, "n": n, "k": k, "block": block or 32, "scale_bits": scale_bits}
    expected = tamiz_ops.run("BlockMatMul", [x, packed, mask, bias], isa="scalar", **attributes)
    for isa in ISAS:
        for threads in (1, 2, 5):
            got = tamiz_ops.run(
                "BlockMatMul", [x, packed, mask, bias], isa=isa, threads=threads, **attributes
            )
            np.testing.assert_array_equal(got[0], expected[0])
        for first, end in ((0, 1), (9, 10), (130, 133)):
            part = None if mask is None else mask[first:end]
            got = tamiz_ops.run(
                "BlockMatMul", [x[first:end], packed, part, bias], isa=isa, **attributes
            )
            np.testing.assert_array_equal(got[0], expected[0][first:end])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "scale_bits"), FORMATS)
@pytest.mark.parametrize("rows", [1, 3])
def test_sums_of_a_group_are_exact(isa, bits, scale_bits, rows) -> None:
    """With quants at the ends of their range and where a byte of them changes sign."""
    n, k = 48, 32
    rng = np.random.default_rng(bits)
    edges = [32512, -32512, 32511, 32384, 32383, -32384, -32385, 0, 1, -1, 127, 128, -128, -129]
    x = rng.choice(edges, (rows, k)).astype(np.float32)
    x[:, :16] = [32512, -32512][rows % 2]  # the scale of a group is 1 then
    low, high = (0, 15) if bits == 4 else (-127, 127)
    quants = rng.choice([low, high, (low + high) // 2], (n, k))
    quants[:16], quants[16:32] = low, high
    ones = np.ones((n, 1), np.float16)
    if bits == 8:
        packed = tamiz_ops.pack_int8(quants.astype(np.int8), ones)
    elif scale_bits == 8:
        bytes_ = ones.astype(np.uint8)
        units = np.full(n, 256, np.float16)
        packed = tamiz_ops.pack_int4_in_units(quants.astype(np.uint8), bytes_, 0 * bytes_, units)
    else:
        packed = tamiz_ops.pack_int4(quants.astype(np.uint8), ones, 0 * ones)
    y = tamiz_ops.run(
        "BlockMatMul", [x, packed], isa=isa, bits=bits, scale_bits=scale_bits, n=n, k=k
    )[0]
    np.testing.assert_array_equal(y, (x.astype(np.int64) @ quants.T).astype(np.float32))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_row_nan(isa, value) -> None:
    n, k = 40, 70
    packed, _ = weight(8, n, k)
    for rows in (1, 3):
        x = random(rows, k)
        x[0, 65] = value
        y = tamiz_ops.run("BlockMatMul", [x, packed], isa=isa, bits=8, n=n, k=k)[0]
        assert np.isnan(y[0]).all()
        assert np.isfinite(y[1:]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scale", [1e-45, 1e-36, 1e-30, 1e30])
def test_extreme_activations(isa, scale) -> None:
    n, k = 20, 96
    packed, terms = weight(4, n, k)
    x = random(2, k, scale=scale)
    x[:, 32:64] = 0
    y = tamiz_ops.run("BlockMatMul", [x, packed], isa=isa, bits=4, n=n, k=k)[0]
    expected = reference.run("BlockMatMul", [x, packed], bits=4, n=n, k=k)[0]
    zeroed = 2.0**-110 * terms.sum(1)  # a group under this counts as zero
    assert np.all(np.abs(y - expected) <= bound(x, terms) + zeroed)


@pytest.mark.parametrize("isa", ISAS)
def test_subnormal_scales(isa) -> None:
    n, k = 16, 32
    quants = np.random.default_rng(0).integers(-127, 128, (n, k), dtype=np.int8)
    packed = tamiz_ops.pack_int8(quants, np.full((n, 1), 2.0**-24, np.float16))
    terms = np.abs(reference.dequantize(packed, 8, n, k))
    check([random(2, k), packed], terms, isa=isa, bits=8, n=n, k=k)


@pytest.mark.parametrize("isa", ISAS)
def test_leading_dimensions(isa) -> None:
    n, k = 30, 50
    packed, terms = weight(4, n, k)
    mask = np.random.default_rng(0).integers(0, 2, (2, 3, 2), dtype=np.uint8)
    y = check([random(2, 3, k), packed, mask], terms, isa=isa, bits=4, n=n, k=k)
    assert y.shape == (2, 3, n)
    check([random(k), packed], terms, isa=isa, bits=4, n=n, k=k)
    empty = tamiz_ops.run(
        "BlockMatMul", [np.empty((2, 0, k), np.float32), packed], isa=isa, bits=4, n=n, k=k
    )[0]
    assert empty.shape == (2, 0, n)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "scale_bits"), FORMATS)
def test_gather(isa, bits, scale_bits) -> None:
    n, k = 50, 70
    packed, _ = weight(bits, n, k, scale_bits)
    ids = np.array([[0, 49, 16], [15, 33, 33]])
    y = tamiz_ops.run(
        "BlockGather", [ids, packed], isa=isa, bits=bits, scale_bits=scale_bits, n=n, k=k
    )[0]
    np.testing.assert_array_equal(
        y, tamiz_ops.dequantize(packed, bits, n, k, scale_bits)[ids], strict=True
    )
    none = tamiz_ops.run(
        "BlockGather", [ids[:0], packed], isa=isa, bits=bits, scale_bits=scale_bits, n=n, k=k
    )[0]
    assert none.shape == (0, 3, k)


@pytest.mark.parametrize("activation_bits", [16, 32])
def test_metrics_count_the_bytes_that_a_mask_saves(activation_bits: int) -> None:
    n, k, block = 32, 96, 4
    packed, _ = weight(4, n, k)
    attributes = {"bits": 4, "n": n, "k": k, "block": block, "activation_bits": activation_bits}
    nodes = [node("BlockMatMul", ["x", "w", "mask"], ["y"], "mm", **attributes)]
    runs = session(
        model(nodes, ["x", value("mask", np.uint8)], ["y"], {"w": packed}),
    )
    mask = np.zeros((1, k // block), np.uint8)
    mask[0, [0, 1, 5]] = 1  # group 0: inputs 0..7 and 20..23, so vectors 0 and 2
    mask[0, 16] = 1  # group 2: one vector
    runs.run(None, {"x": random(1, k), "mask": mask})
    counted = tamiz_ops.metrics(runs)["mm"]
    assert counted["matmul.bytes_dense"] == 2 * 3 * 320
    assert counted["matmul.bytes_read"] == 2 * (2 * 64 + 64 + 64 + 64)
    tamiz_ops.reset_metrics(runs)
    runs.run(None, {"x": random(2, k), "mask": np.repeat(mask, 2, 0)})  # rows share the weight
    assert tamiz_ops.metrics(runs)["mm"]["matmul.bytes_read"] == 2 * 3 * 320


def test_metrics_count_the_units_too() -> None:
    n, k = 32, 96
    packed, _ = weight(4, n, k, 8)
    attributes = {"bits": 4, "scale_bits": 8, "n": n, "k": k, "block": 4}
    nodes = [node("BlockMatMul", ["x", "w", "mask"], ["y"], "mm", **attributes)]
    runs = session(model(nodes, ["x", value("mask", np.uint8)], ["y"], {"w": packed}))
    mask = np.zeros((1, k // 4), np.uint8)
    mask[0, [0, 16]] = 1  # groups 0 and 2, a vector each
    runs.run(None, {"x": random(1, k), "mask": mask})
    counted = tamiz_ops.metrics(runs)["mm"]
    assert counted["matmul.bytes_dense"] == packed.nbytes == 2 * (3 * 288 + 32)
    assert counted["matmul.bytes_read"] == 2 * (2 * (64 + 32) + 32)


N, K = 20, 40
X, MASK, BIAS = random(2, K), np.ones((2, 2), np.uint8), np.zeros(N, np.float32)
PACKED = weight(4, N, K)[0]
GOOD: dict[str, Any] = {"bits": 4, "n": N, "k": K}


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([X[:, :39], PACKED], GOOD, "x has shape [2, 39], expected k = 40"),
        ([X, PACKED[:1]], GOOD, "weight has shape [1, 640], expected [2, 640]"),
        ([X, PACKED], {**GOOD, "bits": 8}, "weight has shape [2, 640], expected [2, 1088]"),
        ([X, PACKED, MASK[:, :1]], GOOD, "mask has shape [2, 1], expected [2, 2]"),
        ([X, PACKED, MASK[0]], GOOD, "mask has shape [2], expected [2, 2]"),
        ([X, PACKED, None, BIAS[1:]], GOOD, "bias has shape [19], expected [20]"),
        ([X.astype(np.int64), PACKED], GOOD, "x is int64, expected float32"),
        ([X, PACKED.view(np.int8)], GOOD, "weight is int8, expected uint8"),
        ([X, PACKED], {**GOOD, "scale_bits": 8}, "weight has shape [2, 640], expected [2, 608]"),
        ([X, PACKED], {**GOOD, "bits": 5}, "attribute 'bits' is 5, expected 4 or 8"),
        ([X, PACKED], {**GOOD, "scale_bits": 4}, "'scale_bits' is 4, expected 16 or 8"),
        (
            [X, PACKED],
            {**GOOD, "bits": 8, "scale_bits": 8},
            "'scale_bits' is 8, expected 16: bits is 8",
        ),
        ([X, PACKED], {**GOOD, "block": 0}, "attribute 'block' is 0, expected 1 to"),
        ([X, PACKED], {**GOOD, "k": 1 << 40}, "attribute 'k' is 1099511627776, expected 1 to"),
        ([X, PACKED], {"bits": 4, "n": N}, "'k' is missing"),
    ],
)
def test_what_does_not_fit_is_named(inputs, attributes, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tamiz_ops.run("BlockMatMul", inputs, **attributes)


@pytest.mark.parametrize("wrong", [-1, N])
def test_gather_names_an_id_out_of_range(wrong) -> None:
    with pytest.raises(ValueError, match=f"ids holds {wrong}, expected 0 to 19"):
        tamiz_ops.run("BlockGather", [np.array([0, wrong]), PACKED], **GOOD)


def test_a_constant_weight_of_another_shape_fails_when_the_session_is_made() -> None:
    nodes = [node("BlockMatMul", ["x", "w"], ["y"], "mm", **GOOD)]
    with pytest.raises(Exception, match=r"weight has shape \[1, 640\], expected \[2, 640\]"):
        session(model(nodes, ["x"], ["y"], {"w": PACKED[:1]}))
