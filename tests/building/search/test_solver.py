"""The allocator's solver: limits hold and are used, and no small problem has a better choice."""

from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from tamiz.building.search.solver import Option, TotalLimits, solve, total
from tamiz.planning.goal import Prefer

COST = {"speed": "seconds", "size": "bytes", "quality": "loss"}


def formats(weights: int, sensitivity: float) -> list[Option]:
    """Options of 8 to 2 bits whose loss grows fourfold a bit."""
    return [
        Option(
            str(bits), sensitivity * weights * 4.0**-bits, weights * bits // 8, weights * bits / 8e9
        )
        for bits in (8, 6, 5, 4, 3, 2)
    ]


WEIGHTS = [formats(1000 + 37 * i, 1.0 + (i * 7919 % 101)) for i in range(120)]


@pytest.mark.parametrize("share", [0.3, 0.45, 0.8])
def test_a_limit_of_bytes_is_used(share: float) -> None:
    most = sum(options[0].bytes for options in WEIGHTS)
    picks, holds = solve(WEIGHTS, TotalLimits(bytes=share * most), "quality")
    assert holds
    assert 0.999 * share * most <= total(WEIGHTS, picks).bytes <= share * most


@pytest.mark.parametrize("prefer", ["speed", "size"])
def test_a_limit_of_loss_is_used(prefer: Prefer) -> None:
    picks, holds = solve(WEIGHTS, TotalLimits(loss=5000.0), prefer)
    assert holds
    assert 4800 <= total(WEIGHTS, picks).loss <= 5000


def test_bits_go_where_they_are_needed() -> None:
    picks, _ = solve(WEIGHTS, TotalLimits(bytes=200_000), "quality")
    order = sorted(range(len(WEIGHTS)), key=lambda i: WEIGHTS[i][0].loss / WEIGHTS[i][0].bytes)
    few, many = order[:20], order[-20:]
    assert sum(picks[i] for i in few) > sum(picks[i] for i in many)


def test_no_limit_takes_the_cheapest() -> None:
    picks, holds = solve(WEIGHTS, TotalLimits(), "size")
    assert holds
    assert set(picks) == {5}


def test_an_impossible_limit_is_reported_with_the_closest_choice() -> None:
    picks, holds = solve(WEIGHTS, TotalLimits(bytes=1), "quality")
    assert not holds
    assert set(picks) == {5}


def test_two_limits_hold_together() -> None:
    most = sum(options[0].bytes for options in WEIGHTS)
    limits = TotalLimits(loss=60_000.0, bytes=0.6 * most)
    picks, holds = solve(WEIGHTS, limits, "speed")
    spent = total(WEIGHTS, picks)
    assert holds
    assert spent.loss <= 60_000
    assert spent.bytes <= 0.6 * most


@given(
    st.lists(
        st.lists(
            st.builds(
                Option,
                st.just("r"),
                st.floats(0, 1),
                st.integers(1, 100),
                st.floats(0.01, 1),
            ),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=5,
    ),
    st.floats(0.1, 1.0),
    st.sampled_from(["speed", "size", "quality"]),
)
@settings(max_examples=200, deadline=None)
@example([[Option("r", 0.0, bytes, 1.0)] for bytes in (70, 82, 35)], 0.9999999999999999, "speed")
def test_small_problems_against_all_choices(
    weights: list[list[Option]], share: float, prefer: Prefer
) -> None:
    limit = share * sum(max(option.bytes for option in options) for options in weights)
    every = [total(weights, picks) for picks in product(*(range(len(r)) for r in weights))]
    lawful = [sums for sums in every if sums.bytes <= limit]
    picks, holds = solve(weights, TotalLimits(bytes=limit), prefer)
    spent = total(weights, picks)
    assert holds == bool(lawful)
    if holds:
        cost = COST[prefer]
        spread = max(max(getattr(r, cost) for r in options) for options in weights)
        best = min(getattr(sums, cost) for sums in lawful)
        assert spent.bytes <= limit
        # The relaxation misses the best choice by at most one site's range.
        assert getattr(spent, cost) <= best + spread * (1 + 1e-5)
