"""The affine formats of other tools' graphs: bytes, values, products on every instruction set."""

from __future__ import annotations

import re
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from numpy.typing import NDArray

import tamiz_ops
from kit.arrays import random
from tamiz_ops import formats, reference

Array = NDArray[Any]

ISAS = tamiz_ops.cpu()["isas"]
NAMES = st.from_regex(r"affine[248]_(16|32|64|128|1024|row)h?[zf]?", fullmatch=True)


def random_parts(format: formats.Affine, n: int, k: int, seed: int = 0) -> formats.Parts:
    rng = np.random.default_rng([seed, n, k])
    blocks = -(-k // format.group) if format.group else 1
    quants = rng.integers(0, 1 << format.bits, (n, k), np.uint8)
    kind = np.float16 if format.halves else np.float32
    scales = rng.uniform(-0.02, 0.02, (n, blocks)).astype(kind)
    zeros: Array | None = rng.integers(0, 1 << format.bits, (n, blocks), np.uint8)
    if format.float_zeros:
        zeros = rng.uniform(0, 1 << format.bits, (n, blocks)).astype(np.float32)
    return formats.Parts(quants, scales, zeros if format.minimum else None)


def affine(name: str) -> formats.Affine:
    format = formats.find_format(name)
    assert isinstance(format, formats.Affine)
    return format


@given(name=NAMES, n=st.integers(1, 40), k=st.integers(1, 300), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_values_are_scale_times_quant_less_zero(name: str, n: int, k: int, seed: int) -> None:
    format = affine(name)
    parts = random_parts(format, n, k, seed)
    packed = formats.pack_parts(format, parts)
    assert packed.shape == format.packed_shape(n, k)
    assert format.bytes(n, k) == packed.size
    again = formats.unpack_parts(format, packed, n, k)
    for field in ("quants", "scales", "minima"):
        np.testing.assert_array_equal(getattr(again, field), getattr(parts, field))
    block = format.group or k

    def spread(array: Array) -> Array:
        return np.repeat(array.astype(np.float32), block, axis=1)[:, :k]

    zeros = np.float32(1 << format.bits - 1) if parts.minima is None else spread(parts.minima)
    assert parts.scales is not None
    expected = spread(parts.scales) * (parts.quants.astype(np.float32) - zeros)
    got = formats.dequantize(format, packed, n, k)
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))
    ids = np.arange(n)[::-1].copy()
    (rows,) = tamiz_ops.run("BlockGather", [ids, packed], format=name, n=n, k=k)
    np.testing.assert_array_equal(rows.view(np.uint32), expected[ids].view(np.uint32))


@given(
    name=NAMES,
    n=st.integers(1, 70),
    k=st.sampled_from([1, 16, 40, 64, 300, 600]),
    rows=st.sampled_from([1, 2, 5, 8, 20]),
    block=st.sampled_from([None, 1, 8, 32]),
    activation_bits=st.sampled_from([8, 16, 32]),
)
@settings(max_examples=40, deadline=None)
def test_products_have_the_bits_of_the_equation_on_every_instruction_set(
    name: str, n: int, k: int, rows: int, block: int | None, activation_bits: int
) -> None:
    format = affine(name)
    parts = random_parts(format, n, k)
    packed = formats.pack_parts(format, parts)
    x, bias = random(rows, k), random(n)
    mask = None
    if block is not None:
        mask = np.random.default_rng(2).integers(0, 2, (rows, -(-k // block)), np.uint8)
    inputs: list[np.ndarray | None] = [x, packed, mask, bias]
    attributes: dict[str, Any] = {"format": name, "n": n, "k": k, "block": block or 32}
    attributes["activation_bits"] = activation_bits
    (expected,) = tamiz_ops.run("BlockMatMul", inputs, isa="scalar", **attributes)
    for isa in ISAS:
        (got,) = tamiz_ops.run("BlockMatMul", inputs, isa=isa, threads=2, **attributes)
        np.testing.assert_array_equal(got, expected, err_msg=isa)
        (one,) = tamiz_ops.run(
            "BlockMatMul",
            [x[:1], packed, None if mask is None else mask[:1], bias],
            isa=isa,
            **attributes,
        )
        np.testing.assert_array_equal(one, expected[:1], err_msg=isa)
    if activation_bits >= 16:
        (exact,) = reference.run("BlockMatMul", inputs, **attributes)
        rounds = activation_bits == 16
        assert np.all(np.abs(expected - exact) <= bound(format, parts, x, bias, rounds=rounds))


def bound(
    format: formats.Affine, parts: formats.Parts, x: Array, bias: Array, *, rounds: bool
) -> Array:
    """What rounding x to 16 bits in groups of 32, and the sums of float32, may change."""
    k = x.shape[1]
    steps = np.abs(np.pad(x, ((0, 0), (0, -k % 32)))).reshape(len(x), -1, 32).max(-1) / 32512
    weight = np.abs(parts.values(format)).astype(np.float64)
    scales = np.repeat(np.abs(parts.scales.astype(np.float64)), format.group or k, 1)[:, :k]  # type: ignore[union-attr]
    terms = weight + scales * 2 * (1 << format.bits)
    step = 0.505 if rounds else 2.0**-16
    rounded = step * np.repeat(steps, 32, axis=1)[:, :k] @ weight.T
    found: Array = rounded + (k + 4) * 2.0**-24 * (np.abs(x) @ terms.T + np.abs(bias))
    return found


@pytest.mark.parametrize(
    "name", ["affine", "affine4", "affine3_32", "affine4_48", "affine4_32x", "affine4_2048"]
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(name))):
        formats.find_format(name)
    with pytest.raises(Exception, match="expected one of"):
        tamiz_ops.run(
            "BlockMatMul", [random(1, 32), np.zeros((1, 8), np.uint8)], format=name, n=1, k=32
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scales": np.full((4, 2), np.inf, np.float32)}, "scales of output 0 hold inf"),
        ({"scales": np.ones((4, 2), np.float16)}, "scales is float16"),
        ({"scales": np.ones((4, 1), np.float32)}, r"scales is float32 \[4, 1\]"),
        ({"minima": None}, "minima is None"),
        ({"quants": np.full((4, 40), 16, np.uint8)}, "quants holds 16"),
    ],
)
def test_malformed_parts_are_refused(changes: dict[str, Any], message: str) -> None:
    format = affine("affine4_32z")
    parts = random_parts(format, 4, 40)
    fields = {name: getattr(parts, name) for name in ("quants", "scales", "minima")} | changes
    with pytest.raises(ValueError, match=message):
        formats.pack_parts(format, formats.Parts(**fields))


def test_a_format_is_named_by_what_it_holds() -> None:
    format = formats.affine_format(4, 128, halves=True, zeros=True)
    assert format.name == "affine4_128hz"
    assert format is formats.find_format("affine4_128hz")
    with pytest.raises(ValueError, match="block is 48"):
        formats.affine_format(4, 48)
