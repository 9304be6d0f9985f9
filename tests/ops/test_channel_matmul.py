"""ChannelMatMul: bit for bit BlockMatMul on the same weight, whatever the mask."""

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
SIZES = [(1, 1), (17, 33), (64, 576), (65, 31), (192, 576), (200, 333), (576, 64)]  # n, k


def parts(n, k, seed=0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, n, k])
    groups = -(-k // 32)
    scales = rng.uniform(-0.02, 0.02, (n, groups)).astype(np.float16)
    minima = rng.uniform(-0.2, 0.1, (n, groups)).astype(np.float16)
    return rng.integers(0, 16, (n, k), dtype=np.uint8), scales, minima


def parts_in_units(n, k) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng([n, k])
    scales, minima = rng.integers(0, 256, (2, n, -(-k // 32)), dtype=np.uint8)
    units = rng.uniform(-0.02, 0.02, n).astype(np.float16)
    return rng.integers(0, 16, (n, k), dtype=np.uint8), scales, minima, units


def packed(n, k, scale_bits=16) -> tuple[np.ndarray, np.ndarray]:
    """The same weight in both layouts."""
    if scale_bits == 8:
        values = parts_in_units(n, k)
        return tamiz_ops.pack_int4_in_units(*values), tamiz_ops.pack_channels_in_units(*values)
    return tamiz_ops.pack_int4(*parts(n, k)), tamiz_ops.pack_channels(*parts(n, k))


def random_mask(rows, k, block, density, seed=3) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((rows, -(-k // block))) < density).astype(np.uint8) * 255


def both(
    x, n, k, mask=None, bias=None, block=1, isa=None, threads=2, scale_bits=16
) -> tuple[np.ndarray, np.ndarray]:
    tiles, channels = packed(n, k, scale_bits)
    same = {"n": n, "k": k, "block": block, "isa": isa, "threads": threads}
    same["scale_bits"] = scale_bits
    [expected] = tamiz_ops.run("BlockMatMul", [x, tiles, mask, bias], bits=4, **same)
    [got] = tamiz_ops.run("ChannelMatMul", [x, channels, mask, bias], **same)
    return got, expected


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_packing_round_trip_and_meaning(n, k) -> None:
    tiles, channels = packed(n, k)
    assert channels.dtype == np.uint8
    assert channels.shape == (-(-n // 64), 4, -(-k // 32) * 320)
    for got, expected in zip(tamiz_ops.unpack_channels(channels, n, k), parts(n, k), strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)
    np.testing.assert_array_equal(
        reference.dequantize_channels(channels, n, k), reference.dequantize(tiles, 4, n, k)
    )


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_packing_in_units_round_trip_and_meaning(n, k) -> None:
    tiles, channels = packed(n, k, 8)
    assert channels.dtype == np.uint8
    assert channels.shape == (-(-n // 64), 4, -(-k // 32) * 288 + 32)
    found = tamiz_ops.unpack_channels_in_units(channels, n, k)
    for got, expected in zip(found, parts_in_units(n, k), strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)
    np.testing.assert_array_equal(
        reference.dequantize_channels(channels, n, k, 8), reference.dequantize(tiles, 4, n, k, 8)
    )


def test_pack_refuses_what_it_cannot_hold() -> None:
    quants, scales, minima = parts(5, 40)
    with pytest.raises(ValueError, match="quants holds 16, expected 0 to 15"):
        tamiz_ops.pack_channels(quants + 1, scales, minima)
    with pytest.raises(ValueError, match=r"minima is float16 \[5, 1\], expected float16 \[5, 2\]"):
        tamiz_ops.pack_channels(quants, scales, minima[:, :1])
    with pytest.raises(ValueError, match=r"packed is uint8 \[1, 2560\], expected uint8 \[1, 4, 64"):
        tamiz_ops.unpack_channels(np.zeros((1, 2560), np.uint8), 5, 40)
    values = parts_in_units(5, 40)
    with pytest.raises(ValueError, match=r"units is float16 \[4\], expected float16 \[5\]"):
        tamiz_ops.pack_channels_in_units(values[0], values[1], values[2], values[3][1:])
    with pytest.raises(ValueError, match=r"expected uint8 \[1, 4, 608\]"):
        tamiz_ops.unpack_channels_in_units(np.zeros((1, 4, 640), np.uint8), 5, 40)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("rows", [1, 2, 5, 17, 130])
@pytest.mark.parametrize("scale_bits", [16, 8])
def test_product_without_mask(isa, n, k, rows, scale_bits) -> None:
    bias = random(n, seed=1)
    got, expected = both(random(rows, k), n, k, bias=bias, isa=isa, scale_bits=scale_bits)
    np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("block", [1, 2, 3, 4, 8, 16, 32, 64, 1000])
@pytest.mark.parametrize("scale_bits", [16, 8])
def test_mask(isa, rows, block, scale_bits) -> None:
    n, k = 200, 333
    for density in (0.0, 0.02, 0.1, 0.5, 0.9, 1.0):
        mask = random_mask(rows, k, block, density)
        x = random(rows, k)
        got, expected = both(x, n, k, mask, block=block, isa=isa, scale_bits=scale_bits)
        np.testing.assert_array_equal(got, expected)
        if density == 0:
            assert not got.any()


@settings(max_examples=30)
@given(
    st.integers(1, 300),
    st.integers(1, 200),
    st.integers(1, 3),
    st.floats(0, 1),
    st.sampled_from([8, 16]),
)
def test_any_size_on_every_instruction_set(n, k, rows, density, scale_bits) -> None:
    x, mask = random(rows, k), random_mask(rows, k, 1, density)
    for isa in ISAS:
        got, expected = both(x, n, k, mask, isa=isa, threads=1, scale_bits=scale_bits)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("rows", [1, 133])
def test_bits_depend_neither_on_threads_nor_on_the_instruction_set(threads, rows) -> None:
    n, k = 300, 600
    x, mask = random(rows, k), random_mask(rows, k, 1, 0.6)
    _, channels = packed(n, k)
    results = [
        tamiz_ops.run("ChannelMatMul", [x, channels, mask], n=n, k=k, isa=isa, threads=threads)[0]
        for isa in ISAS
    ]
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])
    alone = tamiz_ops.run("ChannelMatMul", [x[:1], channels, mask[:1]], n=n, k=k)[0]
    np.testing.assert_array_equal(alone, results[0][:1])


@pytest.mark.parametrize("isa", ISAS)
def test_extreme_activations_are_exact(isa) -> None:
    """The largest quants, of both signs, with the largest weights: no lane overflows."""
    n, k = 64, 32
    quants = np.full((n, k), 15, np.uint8)
    ones = np.ones((n, 1), np.float16)
    channels = tamiz_ops.pack_channels(quants, ones, np.zeros_like(ones))
    for x in (np.ones((1, k), np.float32), -np.ones((1, k), np.float32)):
        for pattern in (1.0, 127 / 128 + 127 / 32512, 128 / 32512):
            values = x.copy()
            values[0, 1:] *= np.float32(pattern)
            [got] = tamiz_ops.run("ChannelMatMul", [values, channels], n=n, k=k, isa=isa)
            [exact] = reference.run("ChannelMatMul", [values, channels], n=n, k=k)
            # half a step of x times 15, for each input; and the float operations of one group
            assert np.all(np.abs(got - exact) <= 32 * 15 * 0.505 / 32512 + 4 * 2**-24 * 480)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_row_nan_unless_masked(isa, value) -> None:
    n, k = 40, 70
    _, channels = packed(n, k)
    for rows in (1, 3):
        x = random(rows, k)
        x[0, 65] = value
        mask = np.ones((rows, k), np.uint8)
        mask[0, 65] = 0
        run = {"n": n, "k": k, "isa": isa}
        [y] = tamiz_ops.run("ChannelMatMul", [x, channels], **run)
        assert np.isnan(y[0]).all()
        assert np.isfinite(y[1:]).all()
        [y] = tamiz_ops.run("ChannelMatMul", [x, channels, mask], **run)
        assert np.isfinite(y).all()


def test_refuses_another_weight() -> None:
    _, channels = packed(100, 64)
    with pytest.raises(ValueError, match=r"weight has shape \[2, 4, 640\], expected \[3, 4, 640\]"):
        tamiz_ops.run("ChannelMatMul", [random(1, 64), channels], n=130, k=64)
    message = r"weight has shape \[2, 4, 640\], expected \[2, 4, 608\]"
    with pytest.raises(ValueError, match=message):
        tamiz_ops.run("ChannelMatMul", [random(1, 64), channels], n=100, k=64, scale_bits=8)
    with pytest.raises(ValueError, match="'scale_bits' is 4, expected 16 or 8"):
        tamiz_ops.run("ChannelMatMul", [random(1, 64), channels], n=100, k=64, scale_bits=4)
    mask = np.ones((1, 2), np.uint8)
    with pytest.raises(ValueError, match=r"mask has shape \[1, 2\], expected \[1, 64\]"):
        tamiz_ops.run("ChannelMatMul", [random(1, 64), channels, mask], n=100, k=64)


def test_metrics_count_scales_and_units() -> None:
    n, k = 100, 64
    for scale_bits, width, units in ((16, 2, 0), (8, 1, 2)):
        _, channels = packed(n, k, scale_bits)
        made = node(
            "ChannelMatMul", ["x", "w", "mask"], ["y"], "mm", n=n, k=k, scale_bits=scale_bits
        )
        runs = session(model([made], ["x", value("mask", np.uint8)], ["y"], {"w": channels}))
        mask = np.zeros((1, k), np.uint8)
        mask[0, [3, 7, 9]] = 1  # of the first group
        runs.run(None, {"x": np.ones((1, k), np.float32), "mask": mask})
        counted = tamiz_ops.metrics(runs)["mm"]
        assert counted["matmul.bytes_dense"] == channels.nbytes
        assert counted["matmul.bytes_read"] == 128 * (3 / 2 + 2 * width + units)
