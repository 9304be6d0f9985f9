"""SignMask on every instruction set against the reference, bit for bit, and what it predicts."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import tamiz_ops
from kit.arrays import random
from kit.ops_graphs import model, node, session, value
from tamiz_ops import reference

ISAS = tamiz_ops.cpu()["isas"]


def signs_of(n, k, seed=0) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.array([-1, 1], np.int8), (n, k))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (16, 32), (17, 33), (100, 700)])
def test_packing_round_trip(n, k) -> None:
    levels = signs_of(n, k)
    packed = tamiz_ops.pack_sign_words(levels)
    assert packed.shape == (-(-n // 16), -(-k // 32) * 64)
    np.testing.assert_array_equal(tamiz_ops.unpack_sign_words(packed, n, k), levels, strict=True)


def test_packing_refuses_what_it_cannot_hold() -> None:
    with pytest.raises(ValueError, match=r"levels holds other values than \[-1, 1\]"):
        tamiz_ops.pack_sign_words(np.zeros((3, 4), np.int8))
    with pytest.raises(ValueError, match=r"expected uint8 \[1, 64\]"):
        tamiz_ops.unpack_sign_words(np.zeros((1, 32), np.uint8), 3, 4)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 1100), st.integers(1, 300), st.integers(1, 40), st.integers(1, 4), st.booleans()
)
def test_every_instruction_set_gives_the_reference(n, k, rows, planes, centred) -> None:
    x, signs = random(rows, k), tamiz_ops.pack_sign_words(signs_of(n, k))
    most = k * (2**planes - 1)
    limits = np.random.default_rng(1).integers(-1, most + 2, n, np.int32)
    inputs = [x, signs, limits, random(k, seed=2) if centred else None]
    attributes = {"n": n, "k": k, "planes": planes, "step": 0.7}
    [expected] = reference.run("SignMask", inputs, **attributes)
    for isa in ISAS:
        [mask] = tamiz_ops.run("SignMask", inputs, isa=isa, **attributes)
        np.testing.assert_array_equal(mask, expected, strict=True)


@pytest.mark.parametrize("isa", ISAS)
def test_one_plane_counts_products_that_are_negative(isa) -> None:
    """SparseInfer's count: signs of x and of a row of W that differ."""
    n, k = 50, 200
    x, levels = random(3, k), signs_of(n, k)
    negative = (np.where(x > 0, 1, -1)[:, None, :] * levels < 0).sum(axis=-1)
    limits = np.full(n, 100, np.int32)
    inputs: list[np.ndarray] = [x, tamiz_ops.pack_sign_words(levels), limits]
    [mask] = tamiz_ops.run("SignMask", inputs, isa=isa, n=n, k=k)
    np.testing.assert_array_equal(mask, negative <= 100)
    assert 0 < mask.mean() < 1


@pytest.mark.parametrize("isa", ISAS)
def test_zeros_count_as_negative_and_nan_is_above_nothing(isa) -> None:
    x = np.array([[0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40]], np.float32)
    signs = tamiz_ops.pack_sign_words(np.ones((8, 6), np.int8))
    limits = np.arange(8, dtype=np.int32)
    [mask] = tamiz_ops.run("SignMask", [x, signs, limits], isa=isa, n=8, k=6)
    assert mask.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]  # 4 of the 6 inputs count as negative


def test_metrics_and_the_switch() -> None:
    n, k = 40, 64
    signs, limits = tamiz_ops.pack_sign_words(signs_of(n, k)), np.full(n, 30, np.int32)
    inputs = ["x", "signs", "limits", "", value("without", np.int64)]
    made = node("SignMask", ["x", "signs", "limits", "", "without"], ["mask"], "signs", n=n, k=k)
    constants = {"signs": signs, "limits": limits}
    graph = model([made], [inputs[0], inputs[4]], [value("mask", np.uint8)], constants)
    runs, x = session(graph), random(5, k)
    mask = runs.run(None, {"x": x, "without": np.zeros(1, np.int64)})[0]
    counted = tamiz_ops.metrics(runs)["signs"]
    assert counted["pack.predicted"] == mask.sum() > 0
    assert counted["pack.outputs"] == 5 * n
    assert runs.run(None, {"x": x, "without": np.ones(1, np.int64)})[0].all()
    assert tamiz_ops.metrics(runs)["signs"]["pack.outputs"] == 5 * n


X, SIGNS, LIMITS = random(2, 40), tamiz_ops.pack_sign_words(signs_of(20, 40)), np.ones(20, np.int32)


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ([X, SIGNS[:1], LIMITS], {}, r"signs has shape \[1, 128\], expected \[2, 128\]"),
        ([X, SIGNS, LIMITS[1:]], {}, r"limits has shape \[19\], expected \[20\]"),
        ([X, SIGNS, LIMITS, X[0, 1:]], {}, r"center has shape \[39\], expected \[40\]"),
        ([X, SIGNS, LIMITS], {"planes": 5}, "attribute 'planes' is 5, expected 1 to 4"),
        ([X, SIGNS, LIMITS], {"step": 0.0}, "attribute 'step' is not positive"),
    ],
)
def test_what_does_not_fit_is_named(inputs, attributes, message) -> None:
    with pytest.raises(ValueError, match=message):
        tamiz_ops.run("SignMask", inputs, n=20, k=40, **attributes)
