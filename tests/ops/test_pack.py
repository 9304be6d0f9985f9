"""Packing: the layout byte by byte, round trips, and the weight that comes out."""

import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

import tamiz_ops
from tamiz_ops import reference

SIZES = st.tuples(st.integers(1, 70), st.integers(1, 100))
HALVES = arrays.from_dtype(np.dtype(np.float16), allow_nan=False, allow_infinity=False)


def quants(dtype, low, high) -> st.SearchStrategy[np.ndarray]:
    return SIZES.flatmap(
        lambda size: arrays.arrays(dtype, size, elements=st.integers(low, high), fill=st.just(low))
    )


@st.composite
def weights4(draw) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    q = draw(quants(np.uint8, 0, 15))
    shape = (q.shape[0], -(-q.shape[1] // 32))
    return (
        q,
        draw(arrays.arrays(np.float16, shape, elements=HALVES)),
        draw(arrays.arrays(np.float16, shape, elements=HALVES)),
    )


@st.composite
def weights8(draw) -> tuple[np.ndarray, np.ndarray]:
    q = draw(quants(np.int8, -127, 127))
    shape = (q.shape[0], -(-q.shape[1] // 32))
    return q, draw(arrays.arrays(np.float16, shape, elements=HALVES))


def spread(factors, k) -> np.ndarray:
    return np.repeat(factors.astype(np.float32), 32, axis=1)[:, :k]


@given(weights4())
def test_int4_round_trip(weight) -> None:
    n, k = weight[0].shape
    packed = tamiz_ops.pack_int4(*weight)
    assert packed.dtype == np.uint8
    assert packed.shape == (-(-n // 16), -(-k // 32) * 320)
    for got, expected in zip(tamiz_ops.unpack_int4(packed, n, k), weight, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)


@st.composite
def weights_in_units(draw) -> tuple[np.ndarray, ...]:
    q = draw(quants(np.uint8, 0, 15))
    shape = (q.shape[0], -(-q.shape[1] // 32))
    scales, minima = (draw(arrays.arrays(np.uint8, shape)) for _ in range(2))
    return q, scales, minima, draw(arrays.arrays(np.float16, shape[0], elements=HALVES))


@given(weights_in_units())
def test_int4_in_units_round_trip_and_meaning(weight) -> None:
    n, k = weight[0].shape
    packed = tamiz_ops.pack_int4_in_units(*weight)
    assert packed.dtype == np.uint8
    assert packed.shape == (-(-n // 16), -(-k // 32) * 288 + 32)
    found = tamiz_ops.unpack_int4_in_units(packed, n, k)
    for got, expected in zip(found, weight, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)
    q, scales, minima, units = weight
    whole = q * spread(scales, k) - 8 * spread(minima, k)
    expected = units[:, None].astype(np.float32) / 256 * whole
    got = tamiz_ops.dequantize(packed, 4, n, k, scale_bits=8)
    np.testing.assert_array_equal(got, expected, strict=True)
    double = reference.dequantize(packed, 4, n, k, scale_bits=8)
    np.testing.assert_array_equal(double.astype(np.float32), expected)


@given(weights8())
def test_int8_round_trip(weight) -> None:
    n, k = weight[0].shape
    packed = tamiz_ops.pack_int8(*weight)
    assert packed.dtype == np.uint8
    assert packed.shape == (-(-n // 16), -(-k // 32) * 544)
    for got, expected in zip(tamiz_ops.unpack_int8(packed, n, k), weight, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)


@given(weights4())
def test_int4_dequantize_is_scale_times_quant_plus_minimum(weight) -> None:
    q, scales, minima = weight
    expected = q.astype(np.float32) * spread(scales, q.shape[1]) + spread(minima, q.shape[1])
    packed = tamiz_ops.pack_int4(*weight)
    np.testing.assert_array_equal(tamiz_ops.dequantize(packed, 4, *q.shape), expected, strict=True)


@given(weights8())
def test_int8_dequantize_is_scale_times_quant(weight) -> None:
    q, scales = weight
    expected = q.astype(np.float32) * spread(scales, q.shape[1])
    packed = tamiz_ops.pack_int8(*weight)
    np.testing.assert_array_equal(tamiz_ops.dequantize(packed, 8, *q.shape), expected, strict=True)


@given(weights4())
def test_the_reference_reads_the_same_layout(weight) -> None:
    q = weight[0]
    packed = tamiz_ops.pack_int4(*weight)
    np.testing.assert_array_equal(
        reference.dequantize(packed, 4, *q.shape).astype(np.float32),
        tamiz_ops.dequantize(packed, 4, *q.shape),
    )


def test_int4_layout() -> None:
    q = np.zeros((17, 33), np.uint8)
    q[3, 8 + 2] = 5  # vector 1, low nibble of byte 4 * 3 + 2
    q[3, 8 + 6] = 9  # the high nibble beside it
    q[16, 32] = 7  # tile 1, group 1, output 0, input 0
    scales, minima = np.zeros((2, 17, 2), np.float16)
    scales[3, 0], minima[3, 0] = 1.0, -2.0
    packed = tamiz_ops.pack_int4(q, scales, minima)
    expected = np.zeros((2, 640), np.uint8)
    expected[0, 64 + 14] = 9 << 4 | 5
    expected[0, 256 + 6 : 256 + 8] = [0x00, 0x3C]
    expected[0, 288 + 6 : 288 + 8] = [0x00, 0xC0]
    expected[1, 320] = 7
    np.testing.assert_array_equal(packed, expected)


def test_int4_in_units_layout() -> None:
    q = np.zeros((17, 33), np.uint8)
    q[3, 8 + 2], q[3, 8 + 6] = 5, 9
    scales, minima = np.zeros((2, 17, 2), np.uint8)
    scales[3, 0], minima[3, 0], scales[16, 1] = 200, 100, 50
    units = np.zeros(17, np.float16)
    units[3], units[16] = 1.0, -2.0
    packed = tamiz_ops.pack_int4_in_units(q, scales, minima, units)
    expected = np.zeros((2, 2 * 288 + 32), np.uint8)
    expected[0, 64 + 14] = 9 << 4 | 5
    expected[0, 256 + 3], expected[0, 272 + 3] = 200, 100
    expected[0, 576 + 6 : 576 + 8] = [0x00, 0x3C]
    expected[1, 288 + 256] = 50
    expected[1, 576:578] = [0x00, 0xC0]
    np.testing.assert_array_equal(packed, expected)


def test_int8_layout() -> None:
    q = np.zeros((17, 33), np.int8)
    q[3, 4 + 2] = -127  # vector 1, byte 4 * 3 + 2
    q[16, 32] = 127
    scales = np.zeros((17, 2), np.float16)
    scales[3, 0] = 1.0
    packed = tamiz_ops.pack_int8(q, scales)
    expected = np.full((2, 1088), 128, np.uint8)  # quants are stored with 128 added
    expected.reshape(2, 2, 544)[:, :, 512:] = 0
    expected[0, 64 + 14] = 1
    expected[0, 512 + 6 : 512 + 8] = [0x00, 0x3C]
    expected[1, 544] = 255
    np.testing.assert_array_equal(packed, expected)


Q4 = np.zeros((2, 33), np.uint8)
F: Any = np.zeros((2, 2), np.float16)  # also where bytes are expected
B, U = np.zeros((2, 2), np.uint8), F[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tamiz_ops.pack_int4(Q4.astype(np.int8), F, F), "quants is int8 [2, 33]"),
        (lambda: tamiz_ops.pack_int4(Q4[0], F, F), "quants is uint8 [33]"),
        (lambda: tamiz_ops.pack_int4(Q4[:0], F, F), "quants is uint8 [0, 33]"),
        (lambda: tamiz_ops.pack_int4(Q4 + 16, F, F), "quants holds 16, expected 0 to 15"),
        (lambda: tamiz_ops.pack_int4(Q4, F[:, :1], F), "scales is float16 [2, 1]"),
        (lambda: tamiz_ops.pack_int4(Q4, F, F.astype(np.float32)), "minima is float32 [2, 2]"),
        (lambda: tamiz_ops.pack_int4_in_units(Q4, F, B, U), "expected uint8 [2, 2]"),
        (lambda: tamiz_ops.pack_int4_in_units(Q4, B, B, F), "units is float16 [2, 2], expected"),
        (lambda: tamiz_ops.pack_int4_in_units(Q4 + 16, B, B, U), "quants holds 16, expected"),
        (lambda: tamiz_ops.unpack_int4_in_units(Q4, 2, 33), "expected uint8 [1, 608]"),
        (lambda: tamiz_ops.dequantize(Q4, 8, 2, 33, 8), "scale_bits is 8, expected 16"),
        (lambda: tamiz_ops.pack_int8(Q4.view(np.int8) - np.int8(-128), F), "quants holds -128"),
        (lambda: tamiz_ops.unpack_int8(Q4, 2, 33), "packed is uint8 [2, 33]"),
        (lambda: tamiz_ops.dequantize(Q4, 2, 2, 33), "bits is 2, expected 4 or 8"),
    ],
)
def test_what_does_not_fit_is_named(call, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        call()
    assert "expected" in str(error.value)
