"""SeedDeltaMatMul on every instruction set against the float64 reference, and its guardian."""

import re
from typing import Any

import numpy as np
import pytest

import tamiz_ops
from kit.arrays import random
from kit.ops_graphs import model, node, session
from tamiz_ops import reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]
BASES = ["none", "xor-circulant", "hadamard"]


def made(
    base, n, k, bits=8, density=0.5, depth=2
) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """The op's inputs but x: [deltas, starts, row_scale, spectrum], and its attributes."""
    rng = np.random.default_rng([n, k, bits])
    tiles, groups = -(-n // 16), -(-k // 32)
    residual = random(n, k, seed=1, scale=0.05)
    stored, exists = rng.random((n, k)) < density, rng.random((tiles, groups)) < 0.8
    levels: Any = [residual.astype(np.float16)]
    if bits < 16:
        levels = tamiz_ops.quantize_groups(residual, bits)
    packed = tamiz_ops.pack_deltas(stored, exists, *levels)
    size = 1 << (max(n, k) - 1).bit_length()
    row_scale = None if base == "none" else random(n, seed=2)
    spectrum = random(size, seed=3, scale=1 / size) if base == "xor-circulant" else None
    attributes = {"bits": bits, "n": n, "k": k, "base": base, "depth": depth, "seed": 5}
    return [*packed, row_scale, spectrum], attributes


def run(
    x, inputs, attributes, *, isa=None, threads=2, mask=None, bias=None, dense=None, **more
) -> np.ndarray:
    inputs = [x, *inputs, mask, bias, dense]
    return tamiz_ops.run("SeedDeltaMatMul", inputs, isa=isa, threads=threads, **attributes, **more)[
        0
    ]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 33), (100, 64), (64, 100), (70, 600)])
def test_product(base, bits, n, k) -> None:
    inputs, attributes = made(base, n, k, bits)
    for rows in (1, 3, 40):
        x, bias = random(rows, k, seed=4), random(n, seed=5)
        expected = reference.run("SeedDeltaMatMul", [x, *inputs, None, bias], **attributes)[0]
        results = [run(x, inputs, attributes, isa=isa, bias=bias) for isa in ISAS]
        # The base in float32 over at most 1024 terms, x of the residual rounded to 2^-16 of its
        # largest: both are relative to the norms, not to the sum.
        norm = np.linalg.norm(x, axis=-1, keepdims=True)
        row = np.abs(inputs[2]) if base != "none" else np.zeros(n)
        limit = 2e-6 * norm * (row * 4 + 1) + 2e-6 * np.abs(bias) + 2e-5 * norm * 0.1
        assert np.all(np.abs(results[0] - expected) <= limit)
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("density", [0.02, 0.5, 1.0])
def test_halves_come_back_as_they_are(density) -> None:
    """In places, under a bitmap, and whole."""
    n, k = 40, 200
    rng = np.random.default_rng(0)
    stored, weight = rng.random((n, k)) < density, random(n, k).astype(np.float16)
    deltas, starts = tamiz_ops.pack_deltas(stored, np.ones((3, 7), bool), weight)
    back = tamiz_ops.unpack_deltas(deltas, starts, bits=16, n=n, k=k)
    np.testing.assert_array_equal(back, np.where(stored, weight, 0))
    attributes = {"bits": 16, "n": n, "k": k, "base": "none"}
    x = random(5, k, seed=4)
    results = [run(x, [deltas, starts, None, None], attributes, isa=isa) for isa in ISAS]
    # x is rounded to 2^-16 of its largest in a group
    limit = 2e-5 * np.linalg.norm(x, axis=1, keepdims=True) * np.linalg.norm(back, axis=1)
    assert np.all(np.abs(results[0] - x @ back.T) <= limit)
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


@pytest.mark.parametrize("bits", [4, 8, 16])
@pytest.mark.parametrize("isa", ISAS)
def test_damaged_records_are_refused(isa, bits) -> None:
    inputs, attributes = made("none", 33, 100, bits)
    x, rng = random(2, 100, seed=4), np.random.default_rng(bits)
    messages = []
    for _ in range(60):
        broken = inputs[0].copy()
        broken[rng.integers(0, len(broken) - 64, 4)] = rng.integers(0, 256, 4, dtype=np.uint8)
        try:
            run(x, [broken, *inputs[1:]], attributes, isa=isa, dense=random(33, 100))
        except ValueError as error:
            messages.append(str(error))
    assert len(messages) > 5
    assert all("are damaged" in message for message in messages)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("block", [1, 32])
def test_a_masked_input_counts_as_zero(base, block) -> None:
    n, k = 40, 200
    inputs, attributes = made(base, n, k)
    mask = np.random.default_rng(0).integers(0, 2, (3, -(-k // block)), dtype=np.uint8)
    x = random(3, k, seed=4)
    clean = np.where(np.repeat(mask, block, axis=1)[:, :k], x, 0).astype(np.float32)
    for isa in ISAS:
        for row in (slice(None), slice(0, 1)):
            got = run(x[row], inputs, attributes, isa=isa, mask=mask[row], block=block)
            np.testing.assert_array_equal(got, run(clean[row], inputs, attributes, isa=isa))


@pytest.mark.parametrize("base", BASES)
def test_bits_do_not_depend_on_threads_or_other_rows(base) -> None:
    inputs, attributes = made(base, 90, 300)
    x = random(50, 300, seed=4)
    expected = run(x, inputs, attributes, isa="scalar", threads=1)
    for isa in ISAS:
        np.testing.assert_array_equal(run(x, inputs, attributes, isa=isa, threads=3), expected)
        np.testing.assert_array_equal(run(x[7], inputs, attributes, isa=isa), expected[7])


def overflowing(n, k) -> tuple[list[np.ndarray | None], dict[str, Any]]:
    """A residual whose product overflows where x is large: int8 with scales of 60000."""
    scales = np.full((n, -(-k // 32)), 60000, np.float16)
    everything = np.ones((n, k), bool), np.ones((-(-n // 16), scales.shape[1]), bool)
    packed = tamiz_ops.pack_deltas(*everything, np.full((n, k), 127, np.int8), scales)
    return [*packed, None, None], {"bits": 8, "n": n, "k": k, "base": "none"}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dense_is_kn", [0, 1])
def test_the_guardian_falls_back_to_dense_row_by_row(isa, dense_is_kn) -> None:
    n, k = 20, 40
    inputs, attributes = overflowing(n, k)
    x, bias, dense = random(5, k, seed=4), random(n, seed=5), random(n, k, seed=6)
    healthy = run(x, inputs, attributes, isa=isa, bias=bias)
    x[[1, 4]] = 1e35
    mask = np.ones((5, 2), np.uint8)
    mask[4, 1] = 0
    stored = np.ascontiguousarray(dense.T) if dense_is_kn else dense
    y = run(
        x, inputs, attributes, isa=isa, bias=bias, mask=mask, dense=stored, dense_is_kn=dense_is_kn
    )
    np.testing.assert_array_equal(y[[0, 2, 3]], healthy[[0, 2, 3]])
    wide = dense.astype(np.float64)
    np.testing.assert_allclose(y[1], x[1] @ wide.T + bias, rtol=1e-6, atol=1e30)
    np.testing.assert_allclose(y[4], x[4, :32] @ wide[:, :32].T + bias, rtol=1e-6, atol=1e30)


def test_without_dense_the_guardian_refuses() -> None:
    inputs, attributes = overflowing(20, 40)
    x = random(3, 40)
    x[2] = 1e35
    message = "row 2 of y is not finite, and there is no dense weight to fall back to"
    with pytest.raises(ValueError, match=message):
        run(x, inputs, attributes)


def test_fallbacks_are_counted() -> None:
    inputs, attributes = overflowing(32, 64)
    names = ["x", "d", "s", "", "", "", "", "dense"]
    constants = {"d": inputs[0], "s": inputs[1], "dense": random(32, 64)}
    nodes = [node("SeedDeltaMatMul", names, ["y"], "mm", **attributes)]
    runs = session(model(nodes, ["x"], ["y"], constants))
    x = random(3, 64)
    x[1] = 1e35
    assert np.isfinite(runs.run(None, {"x": x})[0]).all()
    counted = tamiz_ops.metrics(runs)["mm"]
    assert counted["seed_delta.fallbacks"] == 1
    assert counted["seed_delta.bytes_read"] == 2 * 2 * 548


N, K = 20, 40
INPUTS, GOOD = made("xor-circulant", N, K)
D, S, R, C = INPUTS
X = random(2, K)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([X[:, 1:], D, S, R, C], {}, "x has shape [2, 39], expected k = 40"),
        ([X, D[:1], S, R, C], {}, "deltas has 1 bytes, expected 64 or more"),
        ([X, D, S, R[1:], C], {}, "row_scale has shape [19], expected [20]"),
        ([X, D, S, R, C[1:]], {}, "spectrum has shape [63], expected [64]"),
        ([X, D, S, None, C], {}, "input row_scale is missing, the base is xor-circulant"),
        ([X, D, S, R, C], {"base": "hadamard"}, "input spectrum is there, the base is hadamard"),
        ([X, D, S, R, C], {"base": "noise"}, "attribute 'base' is 'noise', expected none"),
        ([X, D, S, R, C], {"bits": 5}, "attribute 'bits' is 5, expected 4 or 8"),
        ([X, D, S, R, C], {"depth": 17}, "attribute 'depth' is 17, expected 1 to 16"),
        ([X, D, S, R, C, None, None, X], {}, "dense has shape [2, 40], expected [20, 40]"),
        ([X, D, S[::-1].copy(), R, C], {}, "are damaged"),
    ],
)
def test_what_does_not_fit_is_named(inputs, attributes, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        tamiz_ops.run("SeedDeltaMatMul", inputs, **{**GOOD, **attributes})
