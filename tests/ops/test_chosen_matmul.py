"""ChosenMatMul: bit for bit BlockMatMul on the same weight where its mask keeps it, else 0."""

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
SIZES = [(1, 1), (17, 33), (64, 576), (65, 31), (192, 512), (300, 1100)]  # n, k


def parts(n, k) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng([n, k])
    groups = -(-k // 32)
    scales = rng.uniform(-0.02, 0.02, (n, groups)).astype(np.float16)
    minima = rng.uniform(-0.2, 0.1, (n, groups)).astype(np.float16)
    return rng.integers(0, 16, (n, k), dtype=np.uint8), scales, minima


def parts_in_units(n, k) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng([n, k])
    scales, minima = rng.integers(0, 256, (2, n, -(-k // 32)), dtype=np.uint8)
    units = rng.uniform(-0.02, 0.02, n).astype(np.float16)
    return rng.integers(0, 16, (n, k), dtype=np.uint8), scales, minima, units


def packed(n, k, scale_bits) -> tuple[np.ndarray, np.ndarray]:
    """The same weight in both layouts."""
    if scale_bits == 8:
        values = parts_in_units(n, k)
        return tamiz_ops.pack_int4_in_units(*values), tamiz_ops.pack_records_in_units(*values)
    return tamiz_ops.pack_int4(*parts(n, k)), tamiz_ops.pack_records(*parts(n, k))


def random_mask(rows, n, density) -> np.ndarray:
    return (np.random.default_rng(3).random((rows, n)) < density).astype(np.uint8) * 255


def both(x, n, k, mask, bias=None, isa=None, threads=2, scale_bits=16) -> list[np.ndarray]:
    """What it gives, and what is expected."""
    tiles, records = packed(n, k, scale_bits)
    same = {"n": n, "k": k, "isa": isa, "threads": threads, "scale_bits": scale_bits}
    [whole] = tamiz_ops.run("BlockMatMul", [x, tiles, None, bias], bits=4, **same)
    [got] = tamiz_ops.run("ChosenMatMul", [x, records, mask, bias], **same)
    return [got, np.where(mask != 0, whole, np.float32(0))]


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("scale_bits", [16, 8])
def test_packing_round_trip_and_meaning(n, k, scale_bits) -> None:
    tiles, records = packed(n, k, scale_bits)
    chunks = -(-k // 512)
    assert records.shape == (n, chunks * 320 if scale_bits == 16 else chunks * 288 + 32)
    undo = tamiz_ops.unpack_records if scale_bits == 16 else tamiz_ops.unpack_records_in_units
    values = parts(n, k) if scale_bits == 16 else parts_in_units(n, k)
    for got, expected in zip(undo(records, n, k), values, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)
    np.testing.assert_array_equal(
        reference.dequantize_records(records, n, k, scale_bits),
        reference.dequantize(tiles, 4, n, k, scale_bits),
    )


def test_packing_refuses_what_it_cannot_hold() -> None:
    quants, scales, minima = parts(5, 40)
    with pytest.raises(ValueError, match="quants holds 16, expected 0 to 15"):
        tamiz_ops.pack_records(quants + 1, scales, minima)
    with pytest.raises(ValueError, match=r"expected uint8 \[5, 320\]"):
        tamiz_ops.unpack_records(np.zeros((5, 300), np.uint8), 5, 40)
    with pytest.raises(ValueError, match=r"expected uint8 \[5, 320\]"):
        tamiz_ops.unpack_records_in_units(np.zeros((4, 320), np.uint8), 5, 40)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("rows", [1, 3, 8, 9, 300])
@pytest.mark.parametrize("scale_bits", [16, 8])
def test_outputs_are_those_of_the_whole_product(isa, n, k, rows, scale_bits) -> None:
    x, bias = random(rows, k), random(n, seed=1)
    for density in (0.0, 0.1, 0.5, 1.0):
        mask = random_mask(rows, n, density)
        got, expected = both(x, n, k, mask, bias, isa, scale_bits=scale_bits)
        np.testing.assert_array_equal(got, expected, strict=True)


@settings(max_examples=30)
@given(st.integers(1, 300), st.integers(1, 1100), st.integers(1, 3), st.floats(0, 1))
def test_any_size_on_every_instruction_set(n, k, rows, density) -> None:
    x, mask = random(rows, k), random_mask(rows, n, density)
    for isa in ISAS:
        for scale_bits in (8, 16):
            got, expected = both(x, n, k, mask, None, isa, 1, scale_bits)
            np.testing.assert_array_equal(got, expected)


def test_inputs_that_are_not_finite_and_zeros_of_both_signs() -> None:
    n, k = 40, 600
    x = random(4, k)
    x[0], x[1, 3], x[2, 400], x[3] = -0.0, np.inf, np.nan, 1e-40
    got, expected = both(x, n, k, random_mask(4, n, 0.5))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("rows", [1, 20])
def test_it_is_the_reference(rows) -> None:
    n, k = 70, 700
    x, mask, bias = random(rows, k), random_mask(rows, n, 0.3), random(n, seed=1)
    _, records = packed(n, k, 16)
    inputs = [x, records, mask, bias]
    [got] = tamiz_ops.run("ChosenMatMul", inputs, n=n, k=k)
    [expected] = reference.run("ChosenMatMul", inputs, n=n, k=k)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-3)


def test_bytes_read_are_those_of_the_outputs_that_a_row_keeps() -> None:
    n, k = 70, 700
    x, mask = random(2, k), np.zeros((2, n), np.uint8)
    mask[0, :5] = mask[1, 3:9] = 1
    _, records = packed(n, k, 16)
    made = node("ChosenMatMul", ["x", "w", "mask"], ["y"], n=n, k=k)
    run = session(model([made], ["x", value("mask", np.uint8)], ["y"], {"w": records}))
    run.run(None, {"x": x, "mask": mask})
    [counted] = tamiz_ops.metrics(run).values()
    assert counted["matmul.bytes_read"] == 9 * 640
    assert counted["matmul.bytes_dense"] == n * 640


def test_masks_and_weights_of_another_shape_are_refused() -> None:
    x, (_, records) = random(2, 700), packed(70, 700, 16)
    mask = np.ones((2, 70), np.uint8)
    with pytest.raises(ValueError, match=r"mask.*the shape of y, one byte for every output"):
        tamiz_ops.run("ChosenMatMul", [x, records, mask[:, 1:]], n=70, k=700)
    with pytest.raises(ValueError, match=r"weight.*a record for each of n = 70 outputs, k = 700"):
        tamiz_ops.run("ChosenMatMul", [x, records[1:], mask], n=70, k=700)
