"""How a search within limits moves from trial to trial."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.building.search.limit_search import LimitSearch, Solution, alike
from tamiz.building.search.problem import Problem
from tamiz.building.search.solver import Option
from tamiz.building.search.trial_search import Tried
from tamiz.evaluation.judges.judge import Quality
from tamiz.planning.goal import Goal


def tried(option: Option, used: float) -> Tried[Solution]:
    """A trial of a solution that used a share of the limits."""
    return Tried(option.loss, Quality(used, None, used), Solution([], option, []))


def next_loss(*pairs: tuple[float, float]) -> float:
    """The predicted loss of the next trial, after those of predicted losses and used shares."""
    nothing: Any = None
    search = LimitSearch(Problem(Goal(), [], Option("rest", 0.0, 0, 0.0), bound=0.02), nothing)
    search.tried = [tried(Option("model", loss, 1000, 0.1), used) for loss, used in pairs]
    return search.next()


def test_a_single_trial_is_scaled() -> None:
    assert next_loss((0.02, 1.2)) == pytest.approx(0.02 * 0.96 / 1.2)
    assert next_loss((0.02, 0.5)) == pytest.approx(0.02 * 0.96 / 0.5)
    assert next_loss((0.02, 40.0)) == pytest.approx(0.02 / 4)  # a step is bounded
    assert next_loss((0.02, 0.01)) == pytest.approx(0.02 * 4)
    assert next_loss((0.02, math.inf)) == pytest.approx(0.02 / 4)


def test_a_constant_loss_of_techniques_is_seen_after_two_trials() -> None:
    def used(loss: float) -> float:
        return 0.8 + 20 * loss  # 0.96 at 0.008

    first = 0.02
    second = next_loss((first, used(first)))
    assert next_loss((first, used(first)), (second, used(second))) == pytest.approx(0.008)


def test_trials_around_the_limits_are_joined_by_a_line() -> None:
    found = next_loss((0.03, 1.5), (0.01, 0.5), (0.02, 1.1))
    assert found == pytest.approx(0.02 + (0.96 - 1.1) / ((1.1 - 0.5) / 0.01))


def test_trials_on_one_side_of_the_limits_take_the_middle() -> None:
    assert next_loss((0.01, 0.6), (0.03, 1.6), (0.02, 1.2)) == pytest.approx((0.01 + 0.02) / 2)
    assert next_loss((0.03, 1.6), (0.01, 0.6), (0.02, 0.7)) == pytest.approx((0.02 + 0.03) / 2)


def test_trials_around_the_limits_end_the_search_where_nothing_lies_between_them() -> None:
    within = tried(Option("model", 0.018, 1000, 0.1), 0.85)

    def beyond(loss: float, bytes: int, seconds: float) -> Tried[Solution]:
        return tried(Option("model", loss, bytes, seconds), 1.1)

    assert not alike(within, None)
    assert not alike(None, within)
    assert not alike(within, beyond(0.02, 980, 0.0995))  # bytes
    assert not alike(within, beyond(0.02, 995, 0.097))  # time
    assert alike(within, beyond(0.02, 995, 0.0995))
    assert alike(within, beyond(0.017, 1010, 0.101))  # losses that differ by chance


@given(
    st.lists(st.tuples(st.floats(1e-6, 1.0), st.floats(0.0, 10.0)), min_size=1, max_size=6),
)
def test_the_next_trial_lies_between_those_within_and_beyond(
    pairs: list[tuple[float, float]],
) -> None:
    within = max((loss for loss, used in pairs if used <= 1), default=0.0)
    beyond = min((loss for loss, used in pairs if used > 1), default=math.inf)
    found = next_loss(*pairs)
    if within < beyond:
        assert within <= found <= beyond
    assert 0 < found < math.inf
