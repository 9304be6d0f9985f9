"""KwtaMask: which blocks win, on every instruction set, against plain NumPy."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import tamiz_ops
from kit.arrays import random
from tamiz_ops import reference

pytestmark = pytest.mark.slow

ISAS = tamiz_ops.cpu()["isas"]


def mask(x, weight=None, position_ids=None, candidates=None, isa=None, **attributes) -> np.ndarray:
    inputs = [x, weight, position_ids, candidates]
    wanted: list[Any] = [True, None]
    got, _ = tamiz_ops.run("KwtaMask", inputs, out=wanted, isa=isa, threads=2, **attributes)
    assert got.dtype == np.uint8
    return got


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("block", [1, 3, 32])
def test_threshold(isa, block) -> None:
    x, weight = random(2, 40, 100), np.abs(random(-(-100 // block), seed=1)) + 0.1
    got = mask(x, weight, isa=isa, block=block, threshold=0.8)
    expected = reference.run("KwtaMask", [x, weight], block=block, threshold=0.8)[0]
    assert 0 < got.mean() < 1
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weighted", [False, True])
def test_inputs_decided_on_as_they_are_scored_win_as_those_among_candidates(isa, weighted) -> None:
    x, weight = random(1, 7, 83), np.abs(random(83, seed=1)) if weighted else None
    x[0, 2, :4] = [np.nan, np.inf, 0.0, -0.8]
    candidates = np.ones(x.shape, np.uint8)
    how = {"isa": isa, "threshold": 0.8}
    got = mask(x, weight, **how)
    assert 0 < got.mean() < 1
    np.testing.assert_array_equal(got, mask(x, weight, candidates=candidates, **how))


@pytest.mark.parametrize("isa", ISAS)
def test_center(isa) -> None:
    x, center = random(1, 9, 70) + 1, random(70, seed=2)
    inputs = [x, None, None, None, center]
    got, centred, _ = tamiz_ops.run("KwtaMask", inputs, isa=isa, threshold=0.8)
    np.testing.assert_array_equal(centred, x - center)
    np.testing.assert_array_equal(got, np.abs(x - center) >= np.float32(0.8))
    with pytest.raises(ValueError, match="output centred needs input center or renorm"):
        tamiz_ops.run("KwtaMask", [x], isa=isa, threshold=0.8)


def by_token(x, slope, isa=None, center=None, **attributes) -> np.ndarray:
    inputs = [x, None, None, None, center, slope]
    return tamiz_ops.run("KwtaMask", inputs, out=[True, None], isa=isa, **attributes)[0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [1, 31, 32, 100, 576])
def test_the_threshold_of_a_token_follows_its_input(isa, k) -> None:
    x, slope = random(1, 60, k), random(k, seed=3) / np.float32(np.sqrt(k))
    how = {"threshold": 0.7, "offset": 0.2, "range": 1.8}
    got = by_token(x, slope, isa, **how)
    # Bits of the sum and of exp decide on scores at the threshold only.
    told = np.clip(x.astype(np.float64) @ slope + 0.2, -np.log(1.8), np.log(1.8))
    least = 0.7 * np.exp(-told)[..., np.newaxis]
    sure = np.abs(np.abs(x) / least - 1) > 1e-5
    expected = reference.run("KwtaMask", [x, None, None, None, None, slope], **how)[0]
    np.testing.assert_array_equal(got[sure], expected[sure])
    assert sure.mean() > 0.99
    assert np.any(got != mask(x, isa=isa, threshold=0.7)) or k == 1


def test_every_instruction_set_decides_alike() -> None:
    x, slope = random(1, 3000, 77), random(77, seed=3)
    x[..., 0] = 0.7 * np.exp(-np.clip(x.astype(np.float64) @ slope, -0.69, 0.69))
    masks = [by_token(x, slope, isa, threshold=0.7) for isa in ISAS]
    for other in masks[1:]:
        np.testing.assert_array_equal(masks[0], other)


@pytest.mark.parametrize("isa", ISAS)
def test_strange_inputs_do_not_switch_a_site_off(isa) -> None:
    x, slope = random(1, 5, 64), np.ones(64, np.float32)
    x[0, :, 3] = [np.nan, np.inf, -np.inf, 1e30, -1e30]
    got = by_token(x, slope, isa, threshold=0.5, range=2.0)[0]
    for row, kept, least in zip(x[0], got, [0.5, 0.25, 1.0, 0.25, 1.0], strict=True):
        np.testing.assert_array_equal(kept, ~(np.abs(row) < np.float32(least)))
    mixed = random(1, 1, 64)
    mixed[0, 0, :2] = np.inf, -np.inf
    np.testing.assert_array_equal(
        by_token(mixed, slope, isa, threshold=0.5), mask(mixed, isa=isa, threshold=0.5)
    )


def test_a_slope_reads_the_input_before_its_center_is_taken_off() -> None:
    x, center, slope = random(1, 50, 70) + 1, random(70, seed=2), random(70, seed=3) / 8
    inputs: list[np.ndarray | None] = [x, None, None, None, center, slope]
    got, *_ = tamiz_ops.run("KwtaMask", inputs, threshold=0.8)
    expected = reference.run("KwtaMask", inputs, threshold=0.8)[0]
    assert np.mean(got != expected) < 1e-3


def test_a_slope_needs_a_threshold_and_one_number_for_every_input() -> None:
    x, slope = random(1, 5, 64), random(64)
    for how in ({"keep": 3}, {"mass": 0.5}):
        with pytest.raises(ValueError, match="input slope needs a threshold, not keep or mass"):
            by_token(x, slope, **how)
    with pytest.raises(ValueError, match="slope"):
        by_token(x, slope[1:], threshold=0.5)
    with pytest.raises(ValueError, match="attribute 'range' is below 1"):
        by_token(x, slope, threshold=0.5, range=0.5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("center", [None, random(70, seed=2)])
def test_renorm_makes_up_for_what_loses(isa, center) -> None:
    x, positions = random(1, 9, 70) + 1, np.arange(9)[None]
    inputs = [x, None, positions, None, center]
    how: dict[str, Any] = {"block": 3, "threshold": 1.5, "renorm": 1}
    got, scaled, _ = tamiz_ops.run("KwtaMask", inputs, isa=isa, **how)
    expected, expected_scaled, _ = reference.run("KwtaMask", inputs, **how)
    assert 0 < got.mean() < 1
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_allclose(scaled, expected_scaled, rtol=1e-6, atol=0)
    np.testing.assert_array_equal(scaled[0, :4], (x if center is None else x - center)[0, :4])


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from([0.0, 1.0, -1.0, 2.5, 3.0, -0.5, 1e-30]), min_size=1, max_size=70),
    st.integers(1, 80),
    st.integers(0, 2**32 - 1),
)
def test_largest_keeps_exactly_so_many_of_the_candidates_with_ties(values, keep, seed) -> None:
    x = np.array([values], np.float32)
    candidates = np.random.default_rng(seed).integers(0, 2, x.shape, dtype=np.uint8)
    for isa in ISAS:
        got = mask(x, None, None, candidates, isa=isa, keep=keep)[0]
        assert got.sum() == min(keep, candidates.sum())
        assert not np.any(got & ~candidates[0] & 1)
        order = sorted(np.flatnonzero(candidates[0]), key=lambda i: (-abs(x[0, i]), i))
        np.testing.assert_array_equal(np.flatnonzero(got), sorted(order[:keep]))


@settings(max_examples=40)
@given(
    st.integers(1, 130),
    st.integers(1, 40),
    st.sampled_from([{"threshold": 0.7}, {"keep": 9}, {"mass": 0.6}, {"keep": 5, "duty": 2}]),
    st.integers(0, 2**32 - 1),
)
def test_the_mask_is_a_subset_of_the_candidates(k, block, how, seed) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((1, 3, k)).astype(np.float32)
    candidates = rng.integers(0, 2, (1, 3, -(-k // block)), dtype=np.uint8)
    positions = rng.integers(0, 9, (1, 3))
    for isa in ISAS:
        got = mask(x, None, positions, candidates, isa=isa, block=block, **how)
        assert not np.any(got > candidates)


def test_no_flicker_only_scores_near_the_threshold_change_sides() -> None:
    x, noise = random(1, 500, 64), 1e-3 * random(1, 500, 64, seed=1)
    before, after = mask(x, threshold=0.7), mask(x + noise, threshold=0.7)
    near = np.abs(np.abs(x) - 0.7) <= np.abs(noise) + 1e-6
    assert np.any(before != after)
    assert not np.any((before != after) & ~near)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0])
def test_mass_keeps_the_smallest_set(temperature) -> None:
    x = random(5, 64)
    got = mask(x, mass=0.7, temperature=temperature)
    for row, kept in zip(np.abs(x).astype(np.float64), got, strict=True):
        likely = np.sort(np.exp((row - row.max()) / temperature))[::-1]
        expected = int(np.searchsorted(np.cumsum(likely), 0.7 * likely.sum())) + 1
        assert kept.sum() == expected
        assert row[kept == 1].min() >= row[kept == 0].max()


def test_a_higher_temperature_keeps_more_of_the_mass() -> None:
    x = random(1, 200)
    kept = [mask(x, mass=0.5, temperature=t).sum() for t in (0.05, 0.5, 5.0)]
    assert kept[0] < kept[1] < kept[2]


def test_the_first_positions_and_steps_between_duties_keep_all_candidates() -> None:
    x = random(2, 6, 50)
    positions = np.array([[0, 1, 2, 3, 4, 5], [3, 4, 5, 6, 7, 8]])
    candidates = np.random.default_rng(3).integers(0, 2, x.shape, dtype=np.uint8)
    got = mask(x, None, positions, candidates, threshold=1e9, duty=2)
    gated = (positions >= 4) & (positions % 2 == 0)
    np.testing.assert_array_equal(got, np.where(gated[..., None], 0, candidates))
    got = mask(x, None, positions, threshold=1e9, first=0)
    assert not got.any()


def test_the_mask_of_a_token_does_not_depend_on_how_tokens_are_grouped() -> None:
    x, positions = random(1, 40, 96), np.arange(40)[None]
    slope = random(96, seed=3) / 10
    whole = by_token(x, slope, threshold=0.7)
    steps = [by_token(x[:, t : t + 1], slope, threshold=0.7) for t in range(40)]
    np.testing.assert_array_equal(whole, np.concatenate(steps, axis=1))
    for how in ({"threshold": 0.7}, {"keep": 20}, {"mass": 0.6}):
        whole = mask(x, None, positions, **how)
        steps = [mask(x[:, t : t + 1], None, positions[:, t : t + 1], **how) for t in range(40)]
        np.testing.assert_array_equal(whole, np.concatenate(steps, axis=1))


@pytest.mark.parametrize("isa", ISAS)
def test_what_is_not_finite_wins(isa) -> None:
    x = random(1, 40)
    x[0, 7], x[0, 9] = np.nan, np.inf
    for how in ({"threshold": 1e9}, {"keep": 2}):
        np.testing.assert_array_equal(np.flatnonzero(mask(x, isa=isa, **how)), [7, 9])
    assert mask(x, isa=isa, mass=0.5).all()


def test_metrics_count_blocks_and_gated_tokens() -> None:
    ort = pytest.importorskip("onnxruntime")
    from kit.ops_graphs import model, node, session, value

    graph = model(
        [node("KwtaMask", ["x", "", "position_ids"], ["y"], "kwta", threshold=0.5)],
        [value("x", "float32", [1, None, 8]), value("position_ids", "int64", [1, None])],
        [value("y", "uint8", [1, None, 8])],
    )
    run = session(graph)
    assert isinstance(run, ort.InferenceSession)
    x = np.tile(np.array([1, 0], np.float32), (1, 6, 4))
    [got] = run.run(None, {"x": x, "position_ids": np.arange(6)[None]})
    assert got.sum() == 4 * 8 + 2 * 4
    counted = tamiz_ops.metrics(run)["kwta"]
    assert counted["kwta.kept"] == got.sum()
    assert counted["kwta.blocks"] == 48
    assert counted["kwta.duty_hits"] == 2


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"keep": -1}, "attribute 'keep' is negative"),
        ({"mass": 1.5}, "attribute 'mass' is outside of 0 to 1"),
        ({"temperature": 0.0}, "attribute 'temperature' is not positive"),
        ({"keep": 1, "mass": 0.5}, "exclude each other"),
        ({"duty": 0}, "attribute 'duty' is 0"),
    ],
)
def test_refuses_what_makes_no_sense(attributes, message) -> None:
    with pytest.raises(ValueError, match=message):
        mask(random(1, 8), **attributes)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("off", [0, 1])
def test_switched_off_it_gives_the_product_without_it(isa, off) -> None:
    x, center, bias = random(1, 5, 70), random(70, seed=2), random(9, seed=3)
    shifted, without = bias + np.float32(1), np.array([off])
    candidates = np.random.default_rng(4).integers(0, 2, x.shape, np.uint8)
    inputs = [x, None, None, candidates, center, None, shifted, bias, without]
    got = tamiz_ops.run("KwtaMask", inputs, isa=isa, threshold=0.8)
    for one, expected in zip(got, reference.run("KwtaMask", inputs, threshold=0.8), strict=True):
        np.testing.assert_allclose(one, expected, rtol=0, atol=1e-6)
    if off:
        for one, plain in zip(got, [candidates, x, bias], strict=True):
            np.testing.assert_array_equal(one, plain)


def test_a_switch_that_is_no_number_is_refused() -> None:
    x = random(1, 5, 70)
    with pytest.raises(ValueError, match=r"without has shape \[2\], expected \[1\]"):
        tamiz_ops.run("KwtaMask", [x, *[None] * 7, np.zeros(2, np.int64)], out=[True])
