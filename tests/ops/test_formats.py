"""Weight formats: bytes, values bit for bit those of `gguf.dequantize`, and what is refused."""

import os
import re
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from gguf import dequantize
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings

from kit.gguf_blocks import (
    HALVES,
    OF_GGUF,
    block_values,
    random_blocks,
    random_factors,
    random_signs,
)
from tamiz_ops import formats


def bits(values) -> np.ndarray:
    return values.view(np.uint32)


def expected(format, data) -> np.ndarray:
    with np.errstate(all="ignore"):
        return dequantize(data, GGMLQuantizationType[format.gguf])


@pytest.mark.parametrize("format", OF_GGUF, ids=lambda f: f.name)
@given(
    n=st.integers(1, 40),
    blocks=st.integers(1, 5),
    seed=st.integers(0, 1 << 30),
    odd=st.sampled_from([0.0, 0.3, 1.0]),
)
@settings(max_examples=25, deadline=None)
def test_values_are_those_of_gguf_bit_for_bit(format, n, blocks, seed, odd) -> None:
    k = blocks * max(format.block, 32)
    data = random_blocks(format, n, k, seed, odd)
    packed = formats.pack_blocks(format, data, k)
    assert packed.dtype == np.uint8
    assert packed.shape == format.packed_shape(n, k)
    got = formats.dequantize(format, packed, n, k)
    np.testing.assert_array_equal(bits(got), bits(expected(format, data)))
    first, last = sorted((seed % (n + 1), seed // 7 % (n + 1)))
    some = formats.dequantize(format, packed, n, k, slice(first, last))
    np.testing.assert_array_equal(bits(some), bits(got[first:last]))


#: Of 256 inputs, beside those of GGUF: a sign for every input, not for seven in eight;
#: whole fields of bits above the lowest 8 of a vector's number; scales of 4 bits, not of 3;
#: an fp32 factor of 256 scales.
MORE_BYTES = {"iq1_s": 4, "iq1_m": 2, "iq2_xxs": 4, "iq2_xs": 8, "iq3_xxs": 4, "nvfp4": 4}


@pytest.mark.parametrize("format", OF_GGUF, ids=lambda f: f.name)
def test_bytes_are_those_of_gguf(format) -> None:
    block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[format.gguf]]
    k = 512
    row_bytes = k // block * block_bytes + k // 256 * MORE_BYTES.get(format.name, 0)
    assert format.row_bytes(k) == row_bytes
    assert format.bytes(32, k) == 32 * row_bytes
    assert format.bytes(17, k) == format.bytes(32, k)


@pytest.mark.parametrize("format", formats.FORMATS.values(), ids=lambda f: f.name)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 33), (40, 600)])
def test_parts_come_back_from_tiles(format, n, k) -> None:
    """Inputs that are no whole number of blocks are padded."""
    rng = np.random.default_rng([n, k])
    blocks = -(-k // format.block)
    groups = (n, blocks * format.block // format.group)
    kinds = {"fp16": np.float16, "signed byte": np.int8}
    kind = kinds.get(format.scales.value[0], np.uint8)

    def numbers(dtype, shape, most) -> np.ndarray:
        return rng.integers(0, most, shape).astype(dtype)

    most = 1 << min(format.scales.bits, 6)
    scales = numbers(kind, groups, most) if format.scales.bits else None
    units = format.scales is formats.Scales.UNITS
    large = format.block == formats.SUPER_BLOCK
    grid = isinstance(format, formats.Grid)
    k = -(-k // format.step) * format.step
    quant = np.uint16 if format.is_float else np.uint32 if grid else np.uint8
    parts = formats.Parts(
        numbers(quant, (n, k // format.step), 1 << (format.bits if grid else min(format.bits, 12))),
        scales,
        numbers(kind, groups, most) if format.minimum else None,
        numbers(np.float16, (n, blocks if large else 1), 9) if large or units else None,
        numbers(np.float16, (n, blocks), 9) if large and format.minimum else None,
    )
    packed = formats.pack_parts(format, parts)
    assert packed.shape == format.packed_shape(n, k)
    found = formats.unpack_parts(format, packed, n, k)
    for name in ("quants", "scales", "minima", "d", "dmin"):
        one, other = getattr(found, name), getattr(parts, name)
        assert (one is None) == (other is None), name
        if one is not None:
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize("format", [f for f in OF_GGUF if HALVES[f.name]], ids=lambda f: f.name)
@pytest.mark.parametrize("half", [0x7C00, 0xFC00, 0x7E00])
def test_a_factor_that_is_not_finite_is_refused_in_one_sentence(format, half) -> None:
    k = 2 * max(format.block, 32)
    data = random_blocks(format, 20, k)
    for at in HALVES[format.name]:
        wrong = data.copy()
        wrong[18, at : at + 2] = half & 255, half >> 8
        with pytest.raises(ValueError, match=r"of output 18 hold .*expected finite") as error:
            formats.pack_blocks(format, wrong, k)
        assert "\n" not in str(error.value)


def test_a_factor_of_iq1_m_that_is_not_finite_is_refused() -> None:
    format = formats.FORMATS["iq1_m"]
    data = np.zeros((20, 56), np.uint8)
    data[18, 55], data[18, 53] = 0x70, 0xC0  # the high four bits of words: 0x7C00
    with pytest.raises(ValueError, match=r"d of output 18 hold inf at 0, expected finite"):
        formats.pack_blocks(format, data, 256)


def test_an_exponent_that_overflows_is_refused() -> None:
    format = formats.FORMATS["mxfp4"]
    data = np.full((1, 17), 255, np.uint8)
    with pytest.raises(ValueError, match="exponents of output 0 hold 255"):
        formats.pack_blocks(format, data, 32)


def test_tq1_0_becomes_tq2_0() -> None:
    """In chunks, with scales of both signs; any byte holds five elements."""
    kind = GGMLQuantizationType.TQ1_0
    rng = np.random.default_rng(1)
    n, k = 37, 512
    blocks = rng.integers(0, 256, (n, k // 256, 54), dtype=np.uint8)
    scales = rng.uniform(-0.1, 0.1, (n, k // 256, 1)).astype(np.float16)
    blocks[:, :, 52:] = scales.view(np.uint8).reshape(n, -1, 2)
    data = blocks.reshape(n, -1)
    format = formats.gguf_format("TQ1_0")
    assert format is formats.FORMATS["tq2_0"]
    packed = formats.pack_blocks(format, data, k)
    got = formats.dequantize(format, packed, n, k)
    np.testing.assert_array_equal(bits(got), bits(dequantize(data, kind)))
    assert len(np.unique(np.abs(got))) > n


@pytest.mark.skipif(not hasattr(GGMLQuantizationType, "NVFP4"), reason="gguf-py knows no NVFP4")
def test_nvfp4_is_padded_to_whole_super_blocks() -> None:
    n, k = 37, 5 * 64
    format = formats.FORMATS["nvfp4"]
    data = random_blocks(format, n, k)
    got = formats.dequantize(format, formats.pack_blocks(format, data, k), n, k)
    np.testing.assert_array_equal(got, expected(format, data))


@pytest.mark.skipif(not hasattr(GGMLQuantizationType, "NVFP4"), reason="gguf-py knows no NVFP4")
def test_nvfp4_has_a_factor_for_each_output() -> None:
    """Whose products with the scales are rounded to float32, and then those with the elements."""
    n, k = 37, 512
    format = formats.FORMATS["nvfp4"]
    data, factors = random_blocks(format, n, k, plain=True), random_factors(format, n)
    packed = formats.pack_blocks(format, data, k, factors)
    got = formats.dequantize(format, packed, n, k)
    exact = expected(format, data).astype(np.float64) * factors[:, None]
    np.testing.assert_allclose(got, exact, rtol=2**-23)
    for part in (slice(0, 1), slice(3, 20)):
        some = formats.pack_blocks(format, data[part], k, factors[part])
        rows = part.stop - part.start
        np.testing.assert_array_equal(formats.dequantize(format, some, rows, k), got[part])
    whole = formats.pack_blocks(format, data, k, np.ones(n, np.float32))
    np.testing.assert_array_equal(whole, formats.pack_blocks(format, data, k))
    with pytest.raises(ValueError, match="d of output 3 hold inf at 0, expected finite"):
        formats.pack_blocks(format, data, k, np.where(np.arange(n) == 3, np.inf, factors))


@pytest.mark.skipif(not hasattr(GGMLQuantizationType, "NVFP4"), reason="gguf-py knows no NVFP4")
def test_nvfp4_has_the_same_bits_with_elements_of_8_bits() -> None:
    """As its rows are stored that are no whole super-blocks."""
    n, k = 37, 5 * 64
    narrow, format = formats.gguf_format("NVFP4", k), formats.gguf_format("NVFP4", 512)
    assert (narrow, format) == (formats.find_format("affine8_16"), formats.FORMATS["nvfp4"])
    data = random_blocks(format, n, k)
    for factors in (None, random_factors(format, n)):
        one, other = (
            formats.dequantize(each, formats.pack_blocks(each, data, k, factors), n, k)
            for each in (narrow, format)
        )
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(not hasattr(GGMLQuantizationType, "Q1_0"), reason="gguf-py knows no Q1_0")
def test_q1_0_keeps_its_values() -> None:
    n, k = 37, 512
    data = random_signs(n, k)
    format = formats.gguf_format("Q1_0")
    assert format is formats.find_format("affine2_128h")
    got = formats.dequantize(format, formats.pack_blocks(format, data, k), n, k)
    np.testing.assert_array_equal(got, block_values(data, GGMLQuantizationType.Q1_0))


@pytest.mark.parametrize("kind", ["NVFP4", "Q1_0"])
def test_rows_of_half_a_block_are_refused(kind) -> None:
    format = formats.gguf_format(kind)
    with pytest.raises(
        ValueError, match=r"k is 32, expected a multiple of (64 for nvfp4|128 for aff)"
    ):
        formats.pack_blocks(format, np.zeros((1, 18), np.uint8), 32)


Q4_K, Q4_1 = formats.FORMATS["q4_k"], formats.FORMATS["q4_1"]
TILE = np.zeros((1, Q4_K.tile_bytes(256)), np.uint8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: formats.find_format("q9"), "format is 'q9', expected one of: q4_0"),
        (
            lambda: formats.pack_blocks(Q4_K, TILE, 256, np.ones(1, np.float32)),
            "format q4_k holds no factors of outputs, expected nvfp4 or affine8_16",
        ),
        (lambda: formats.pack_blocks(Q4_K, TILE, 255), "k is 255, expected a multiple of 256"),
        (
            lambda: formats.pack_blocks(Q4_K, TILE, 256),
            "data is uint8 [1, 2304], expected uint8 [N, 144]",
        ),
        (lambda: formats.pack_blocks(Q4_K, TILE[:, :144].view(np.int8), 256), "data is int8"),
        (
            lambda: formats.pack_blocks(formats.FORMATS["q4_units"], TILE, 256),
            "format q4_units holds no GGUF type",
        ),
        (lambda: formats.dequantize(Q4_K, TILE, 17, 256), "expected uint8 [2, 2304] for q4_k"),
        (lambda: formats.dequantize(Q4_K, TILE, 0, 256), "n is 0"),
        (lambda: formats.dequantize(Q4_K, TILE, 4, 256, slice(0, 4, 2)), "step 2, expected 1"),
        (
            lambda: formats.pack_parts(Q4_1, formats.Parts(np.zeros((2, 32), np.uint8))),
            "scales has shape None, expected (2, 1)",
        ),
        (
            lambda: formats.pack_parts(
                Q4_1,
                formats.Parts(np.full((2, 32), 16, np.uint8), *np.zeros((2, 2, 1), np.float16)),
            ),
            "quants holds 16, expected 4 bits",
        ),
    ],
)
def test_what_does_not_fit_is_named(call, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def models() -> list[Path]:
    folder = Path(os.environ.get("TAMIZ_MODELS", Path.home() / ".cache" / "tamiz-models"))
    return sorted(folder.glob("*.gguf"))


@pytest.mark.parametrize("path", models() or [None], ids=lambda p: p.stem if p else "none")
def test_every_tensor_of_real_models(path) -> None:
    """Some rows of each tensor, its first and its last ones among them."""
    if path is None:
        pytest.skip("no GGUF in ~/.cache/tamiz-models; TAMIZ_MODELS names another folder")
    from gguf import GGUFReader

    whole = {"F32"}
    for tensor in GGUFReader(path).tensors:
        name = tensor.tensor_type.name
        if name in whole:
            continue
        format = formats.gguf_format(name)
        assert format, f"{tensor.name}: no format holds {name}"
        k = int(tensor.shape[0])
        data = tensor.data.view(np.uint8).reshape(-1, tensor.n_bytes * k // tensor.n_elements)
        for rows in (slice(0, 333), slice(-100, None)):
            part = data[rows]
            packed = formats.pack_blocks(format, part, k)
            assert packed.nbytes <= part.nbytes + 15 * format.row_bytes(k)
            got = formats.dequantize(format, packed, len(part), k)
            np.testing.assert_array_equal(
                bits(got), bits(expected(format, part)), err_msg=tensor.name
            )
