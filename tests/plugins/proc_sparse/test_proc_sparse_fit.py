"""proc-sparse's fit: what exists, what is stored, and what the op then computes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamiz_ops
from kit.arrays import random
from kit.sites import linear
from tamiz.api.statistics import Statistics
from tamiz.api.technique import Fit, FitError
from tamiz_proc_sparse.config import ProcSparseConfig
from tamiz_proc_sparse.fit import HASH_DEVIATION, cost, dequantize, fit, schedule


def fitted(weight: np.ndarray, statistics: Statistics | None = None, **fields: object) -> Fit:
    return fit(linear(*weight.shape), weight, statistics, ProcSparseConfig(**fields))


def error(weight: np.ndarray, made: Fit) -> float:
    w = dequantize(linear(*weight.shape), made)
    return float(np.linalg.norm(w - weight) / np.linalg.norm(weight))


def test_everything_stored_is_exact_for_weights_on_int4_levels() -> None:
    rng = np.random.default_rng(0)
    quants = rng.integers(0, 16, (40, 3, 32))
    quants[..., 0], quants[..., 1] = 0, 15
    scales = rng.uniform(0.001, 0.02, (40, 3, 1)).astype(np.float16).astype(np.float32)
    minima = rng.uniform(-0.2, 0, (40, 3, 1)).astype(np.float16).astype(np.float32)
    weight = (quants.astype(np.float32) * scales + minima).reshape(40, 96)
    made = fitted(weight, shed_eps=0)
    assert made.metrics["exact"] == 1
    assert np.array_equal(dequantize(linear(40, 96), made), weight)
    assert made.metrics["proc.stored"] == 1
    assert made.metrics["proc.shed_soft"] == made.metrics["proc.shed_hard"] == 0


def test_the_hash_stands_where_nothing_is_stored() -> None:
    weight = random(32, 64)
    made = fitted(weight, watermark=0, base_scale=0.05)
    base = np.float32(0.05 * weight.std(dtype=np.float64) / HASH_DEVIATION)
    assert made.attributes["base"] == base
    np.testing.assert_array_equal(
        dequantize(linear(32, 64), made), base * tamiz_ops.hash_weights(32, 64)
    )
    ablated = fitted(weight, watermark=0, base_scale=0)
    assert not dequantize(linear(32, 64), ablated).any()


@pytest.mark.parametrize(("block", "fanout"), [(32, 3), (64, 2), (128, 1)])
def test_an_output_reads_at_most_fanout_blocks(block: int, fanout: int) -> None:
    weight = random(50, 300)
    w = dequantize(linear(50, 300), fitted(weight, fanout=fanout, block=block))
    starts = np.arange(0, 300, block)
    blocks = np.add.reduceat(np.abs(w), starts, axis=1) != 0
    assert (blocks.sum(axis=1) == fanout).all()
    tiles = np.add.reduceat(np.square(weight), np.arange(0, 50, 16), axis=0)
    energy = np.add.reduceat(tiles, starts, axis=1)
    for tile, kept in zip(energy, blocks[::16], strict=True):
        assert set(np.argsort(-tile)[:fanout]) == set(np.flatnonzero(kept))


@pytest.mark.parametrize("tensor", ["attn_q", "attn_o"])
def test_the_fanout_counts_by_head(tensor: str) -> None:
    """A head of outputs reads the same blocks; of every head of inputs as many are read."""
    weight, at = random(128, 256), linear(128, 256, tensor=tensor)
    weight[:, :64] *= 10
    made = fit(at, weight, None, ProcSparseConfig(fanout=1, head_size=64, base_scale=0, shed_eps=0))
    blocks = (dequantize(at, made).reshape(128, 8, 32) != 0).any(axis=2)
    if tensor == "attn_q":
        assert (blocks.sum(axis=1) == 1).all()
        assert (blocks[:64] == blocks[0]).all()
        assert (blocks[64:] == blocks[64]).all()
    else:
        assert (blocks.reshape(128, 4, 2).sum(axis=2) == 1).all()
    expected = cost(at, ProcSparseConfig(fanout=1, head_size=64, shed_eps=0))
    assert expected.exact
    assert sum(tensor.nbytes for tensor in made.tensors.values()) == expected.stored


@pytest.mark.parametrize(("tensor", "n", "k"), [("attn_q", 100, 128), ("attn_o", 128, 100)])
def test_heads_that_do_not_divide_a_weight_are_refused(tensor: str, n: int, k: int) -> None:
    with pytest.raises(FitError, match="head_size is 64, expected a divisor of 100"):
        fit(linear(n, k, tensor=tensor), random(n, k), None, ProcSparseConfig(head_size=64))
    fit(linear(n, k), random(n, k), None, ProcSparseConfig(head_size=64))


def test_shedding_drops_the_smallest() -> None:
    weight = random(16, 256)
    made = fitted(weight, watermark=100, base_scale=0, bits=8)
    w = dequantize(linear(16, 256), made)
    assert (np.count_nonzero(w, axis=1) <= 100).all()
    for row, kept in zip(weight, w != 0, strict=True):
        assert np.abs(row[kept]).min() >= np.sort(np.abs(row))[-100]
    soft = fitted(weight, shed_eps=0.5, base_scale=0)
    assert soft.metrics["proc.shed_soft"] == pytest.approx(
        (np.abs(weight) < 0.5 * np.sqrt((weight**2).mean(1, keepdims=True))).mean(), abs=1e-3
    )


def test_calibration_says_which_weights_matter() -> None:
    weight = np.ones((16, 128), np.float32)
    m = np.ones(128, np.float32)
    m[64:] = 4
    statistics = Statistics(10, m, np.zeros((0, 128), np.float32))
    w = dequantize(linear(16, 128), fitted(weight, statistics, fanout=2, base_scale=0))
    assert not w[:, :64].any()
    np.testing.assert_array_equal(w[:, 64:], 1)


@settings(max_examples=25)
@given(
    n=st.integers(1, 40),
    k=st.integers(1, 130),
    bits=st.sampled_from([4, 8]),
    watermark=st.integers(0, 130),
    fanout=st.integers(1, 5),
    base_scale=st.sampled_from([0.0, 0.05, 1.0]),
)
def test_two_fits_have_the_same_bytes_and_the_op_multiplies_what_they_say(
    n: int, k: int, bits: int, watermark: int, fanout: int, base_scale: float
) -> None:
    weight = random(n, k)
    fields: dict[str, Any] = {
        "bits": bits,
        "watermark": watermark,
        "fanout": fanout,
        "base_scale": base_scale,
    }
    made, again = fitted(weight, **fields), fitted(weight, **fields)
    assert made.attributes == again.attributes
    for name, tensor in made.tensors.items():
        assert tensor.tobytes() == again.tensors[name].tobytes()
    stored = sum(tensor.nbytes for tensor in made.tensors.values())
    expected = cost(linear(n, k), ProcSparseConfig(**fields))
    assert stored <= expected.stored
    assert stored == expected.stored or not expected.exact
    assert made.bits_per_weight == 8 * stored / (n * k)
    x = random(2, k, seed=1)
    inputs = [x, made.tensors["deltas"], made.tensors["starts"]]
    attributes: dict[str, Any] = {**made.attributes}
    y = tamiz_ops.run("ProcSparseMatMul", inputs, **attributes)[0]
    np.testing.assert_allclose(y, x @ dequantize(linear(n, k), made).T, atol=2e-4 * k**0.5)


def test_the_target_leaves_tensors_out() -> None:
    weight = random(16, 32)
    for target, tensor, taken in (
        ("mlp", "ffn_down", True),
        ("mlp", "attn_q", False),
        ("attn", "attn_o", True),
        ("attn", "ffn_gate", False),
        ("both", "attn_q", True),
    ):
        config = ProcSparseConfig(target=target)
        if taken:
            fit(linear(16, 32, tensor=tensor), weight, None, config)
        else:
            with pytest.raises(FitError, match=f"the target is {target}"):
                fit(linear(16, 32, tensor=tensor), weight, None, config)


@pytest.mark.parametrize(("value", "message"), [(np.nan, "not finite"), (1e30, "above 65504")])
def test_what_cannot_be_stored_is_refused(value: float, message: str) -> None:
    weight = random(16, 32)
    weight[3, 4] = value
    with pytest.raises(FitError, match=message):
        fitted(weight)


def test_autotune_goes_from_few_deltas_to_all() -> None:
    weight = random(64, 256)
    errors = [
        error(weight, fitted(weight, bits=8, **fields))
        for fields in schedule(linear(64, 256), ProcSparseConfig())
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1
    assert errors[-1] < 0.01
