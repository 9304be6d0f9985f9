"""Soft-capped scores c · tanh(x / c) of attention, on every instruction set."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tamiz_ops
from kit.attention_case import TOLERANCE, Case, assert_rounded
from tamiz_ops.attention_reference import attention
from tamiz_ops.cache_rows import pack_rows

ISAS = tamiz_ops.cpu()["isas"]


def check(case: Case, isa: str, **attributes: Any) -> None:
    got = case.run(isa, threads=2, **attributes)[0]
    expected = case.reference(**attributes)[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


def one_score(isa: str, scores: np.ndarray, cap: float) -> np.ndarray:
    """The capped scores, from the weights that they have beside a score of 0.

    Each key has a query head of its own, and element 1 of its value is 1.
    """
    count = len(scores)
    q, k, v = np.zeros((3, 1, 2, 4 * count), np.float32)
    q[0, 1, ::4] = scores
    k[0, 1, ::4] = 1
    v[0, 1, 1::4] = 1
    empty, mask = np.zeros((1, count, 0, 4), np.float32), np.ones((1, 2), np.int64)
    y = tamiz_ops.run(
        "Attention", [q, k, v, empty, empty, mask, np.arange(2)[None], None], out=[True] * 3,
        isa=isa, num_heads=count, kv_heads=count, scale=1.0, softcap=cap,
    )[0]  # fmt: skip
    weight = y[0, 1, 1::4].astype(np.float64)
    return np.log(weight / (1 - weight))


def test_the_reference_is_a_softmax_of_capped_scores() -> None:
    case = Case(tokens=1, past=6, heads=(1, 1), dim=8, rotary=0)
    y, keys, values = case.reference(scale=2.0, softcap=1.5)
    score = 1.5 * np.tanh(2.0 * keys[0, 0] @ case.q[0, 0] / 1.5)
    weight = np.exp(score) / np.exp(score).sum()
    np.testing.assert_allclose(y[0, 0], weight @ values[0, 0], atol=1e-12)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cap", [0.5, 5.0])
def test_every_score_is_capped(isa: str, cap: float) -> None:
    scores = np.linspace(-3 * cap, 3 * cap, 301, dtype=np.float32)
    expected = cap * np.tanh(scores.astype(np.float64) / cap)
    np.testing.assert_allclose(one_score(isa, scores, cap), expected, rtol=0, atol=3e-5)


@pytest.mark.parametrize("isa", ISAS)
def test_scores_of_any_size_are_at_most_the_cap(isa: str) -> None:
    scores = np.array([1e3, -1e3, 1e30, -1e30, 3e38, -3e38], np.float32)
    expected = 2 * np.sign(scores)
    np.testing.assert_allclose(one_score(isa, scores, 2.0), expected, rtol=0, atol=3e-6)
    assert np.isnan(one_score(isa, np.array([np.nan], np.float32), 2.0)).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("cap", [0.3, 2.0, 50.0])
@pytest.mark.parametrize("tokens", [1, 5, 12, 13, 31, 70])
@pytest.mark.parametrize(("heads", "dim"), [((8, 4), 256), ((3, 1), 20), ((1, 1), 7)])
def test_steps_and_prompts(
    isa: str, cap: float, tokens: int, heads: tuple[int, int], dim: int
) -> None:
    check(Case(tokens=tokens, past=150, heads=heads, dim=dim, rotary=4), isa, softcap=cap)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 40])
@pytest.mark.parametrize("window", [{}, {"window": 30}, {"window": 100, "sinks": 0}])
def test_batches_masks_and_windows(isa: str, tokens: int, window: dict[str, int]) -> None:
    case = Case(batch=3, tokens=tokens, past=300, heads=(6, 2), dim=32)
    case.mask[1, :70] = 0
    case.mask[2] = case.rng.random(case.mask.shape[1]) < 0.7
    case.past_key[1, :, :70] = np.nan
    case.past_value[1, :, :70] = np.nan
    got = case.run(isa, softcap=2.0, **window)[0]
    case.past_key[1, :, :70] = case.past_value[1, :, :70] = 0
    expected = case.reference(softcap=2.0, **window)[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 40])
def test_a_cache_of_bytes(isa: str, tokens: int) -> None:
    case = Case(tokens=tokens, past=200, heads=(6, 2), dim=64, rotary=0)
    case.past_key, case.past_value = pack_rows(case.past_key), pack_rows(case.past_value)
    how: dict[str, Any] = {"softcap": 2.0, "cache_bits": 8}
    assert_rounded(case.run(isa, threads=2, **how)[0], case.reference(**how)[0])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tokens", [1, 30])
def test_no_cap_has_the_bits_of_an_omitted_one(isa: str, tokens: int) -> None:
    case = Case(tokens=tokens, past=150, heads=(6, 2), dim=32)
    np.testing.assert_array_equal(case.run(isa, softcap=0.0)[0], case.run(isa)[0])


@pytest.mark.parametrize("isa", ISAS)
def test_a_large_cap_is_as_none(isa: str) -> None:
    @settings(max_examples=30, database=None, derandomize=True, deadline=None)
    @given(
        st.floats(2e3, 1e9), st.sampled_from([1, 3, 20]), st.integers(0, 200), st.integers(0, 99)
    )
    def check_cap(cap: float, tokens: int, past: int, seed: int) -> None:
        case = Case(tokens=tokens, past=past, heads=(3, 1), dim=16, seed=seed)
        got = case.run(isa, softcap=cap)[0]
        np.testing.assert_allclose(got, case.run(isa)[0], rtol=0, atol=1e-5)

    check_cap()


@pytest.mark.parametrize("isa", ISAS)
def test_a_small_cap_gives_all_keys_nearly_the_same_weight(isa: str) -> None:
    case = Case(tokens=20, past=40, heads=(2, 1), dim=16)
    y = case.run(isa, softcap=1e-6)[0]
    values = np.concatenate([case.past_value[0, 0], case.v[0]])
    mean = values.cumsum(axis=0)[40:] / np.arange(41, 61)[:, None]
    np.testing.assert_allclose(y[0, :, :16], mean, rtol=0, atol=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [64, 80])
@pytest.mark.parametrize("ternary", [0, 1])
def test_keys_that_a_filter_keeps_are_attended_to_with_their_capped_scores(
    isa: str, dim: int, ternary: int
) -> None:
    """A cap keeps the order of scores, so that the filter keeps the keys that it keeps without."""
    from tamiz_ops import sketch_reference

    case = Case(tokens=1, past=400, heads=(2, 1), dim=dim, rotary=0)
    rows = sketch_reference.sketch(case.past_key, None, 1 + ternary, 0.5)
    inputs = [*case.inputs, rows]
    choice: dict[str, Any] = {"keep": 40, "recent": 8, "ternary": ternary, "epsilon": 0.5}
    choice |= case.heads | {"softcap": 0.7}
    got = tamiz_ops.run("Attention", inputs, out=[True] * 4, isa=isa, **choice)[0]
    expected = attention(*inputs, **choice)[0]
    np.testing.assert_allclose(got, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("cap", [-1.0, np.nan, np.inf, 1e-40])
def test_other_caps_are_refused(cap: float) -> None:
    with pytest.raises(
        ValueError, match=r"softcap is .*, expected 0 or a positive number"
    ) as error:
        Case().run(softcap=cap)
    assert "\n" not in str(error.value)
