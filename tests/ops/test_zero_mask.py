"""ZeroMask on every instruction set against the reference, and with what reads it."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import tamiz_ops
from kit.ops_graphs import model, node, session, value
from tamiz_ops import reference

ISAS = tamiz_ops.cpu()["isas"]


def sparse(*shape, density, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * (rng.random(shape) < density)
    return x.astype(np.float32)


@settings(max_examples=60)
@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 40), st.booleans(), st.data())
def test_what_is_not_zero_is_kept(k, rows, block, narrowed, data) -> None:
    x = sparse(rows, k, density=data.draw(st.floats(0, 1)))
    blocks = (rows, -(-k // block))
    candidates = np.random.default_rng(1).integers(0, 2, blocks, np.uint8) if narrowed else None
    attributes = {"block": block, "density": data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))}
    inputs = [x, candidates, data.draw(st.sampled_from([None, np.zeros(1, int), np.ones(1, int)]))]
    [expected] = reference.run("ZeroMask", inputs, **attributes)
    for isa in ISAS:
        [mask] = tamiz_ops.run("ZeroMask", inputs, isa=isa, **attributes)
        np.testing.assert_array_equal(mask, expected, strict=True)


@pytest.mark.parametrize("isa", ISAS)
def test_epsilon_itself_counts_as_zero(isa) -> None:
    x = np.array([[0.5, -0.5, np.nextafter(np.float32(0.5), np.float32(1)), -0.7, -0.0, 1e-45]])
    [mask] = tamiz_ops.run("ZeroMask", [x.astype(np.float32)], isa=isa, epsilon=0.5)
    assert mask.tolist() == [[0, 0, 1, 1, 0, 0]]
    [mask] = tamiz_ops.run("ZeroMask", [x.astype(np.float32)], isa=isa)
    assert mask.tolist() == [[1, 1, 1, 1, 0, 1]]


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite_is_kept(isa) -> None:
    x = np.array([[np.nan, 0, np.inf, -np.inf]], np.float32)
    [mask] = tamiz_ops.run("ZeroMask", [x], isa=isa, epsilon=1.0)
    assert mask.tolist() == [[1, 0, 1, 1]]


@pytest.mark.parametrize("rows", [1, 3])
def test_the_product_with_the_mask_is_that_without(rows) -> None:
    """Bit for bit: zeros are skipped for free."""
    n, k = 100, 333
    rng = np.random.default_rng(0)
    quants = rng.integers(0, 16, (n, k), dtype=np.uint8)
    scales = rng.uniform(0.01, 0.02, (n, 11)).astype(np.float16)
    channels = tamiz_ops.pack_channels(quants, scales, -8 * scales)
    x = np.maximum(sparse(rows, k, density=0.2), 0)
    for isa in ISAS:
        [mask] = tamiz_ops.run("ZeroMask", [x], isa=isa)
        results = [
            tamiz_ops.run("ChannelMatMul", [x, channels, m], isa=isa, n=n, k=k)[0]
            for m in (mask, None)
        ]
        np.testing.assert_array_equal(*results)


def test_metrics_tell_density_and_who_was_masked() -> None:
    made = node("ZeroMask", ["x"], ["mask"], "zero", density=0.5)
    runs = session(model([made], ["x"], [value("mask", np.uint8)]))
    x = np.ones((3, 64), np.float32)
    x[0, 8:], x[1, 32:] = 0, 0
    mask = runs.run(None, {"x": x})[0]
    assert mask.sum(axis=1).tolist() == [8, 32, 64]
    counted = tamiz_ops.metrics(runs)["zero"]
    names = ["enabled", "active", "nonzero", "inputs"]
    assert [counted[f"pack.{name}"] for name in names] == [3, 2, 8 + 32 + 64, 3 * 64]


X = np.ones((2, 40), np.float32)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([X, np.ones((2, 3), np.uint8)], {"block": 32}, r"candidates has shape \[2, 3\], expected"),
        ([X], {"block": 0}, "attribute 'block' is 0, expected 1 to"),
        ([X], {"epsilon": -1.0}, "attribute 'epsilon' is negative"),
        ([X], {"density": 2.0}, "'density' is outside of 0 to 1"),
    ],
)
def test_what_does_not_fit_is_named(inputs, attributes, message) -> None:
    with pytest.raises(ValueError, match=message):
        tamiz_ops.run("ZeroMask", inputs, **attributes)
