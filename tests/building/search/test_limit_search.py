"""How a search within limits moves from trial to trial."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.building.search.limit_search import Tried, alike, next_loss
from tamiz.building.search.solver import Rung


def trials(*pairs: tuple[float, float]) -> list[Tried]:
    """Trials by their predicted loss and the share of the limits that they used."""
    return [Tried(Rung("model", loss, 1000, 0.1), used) for loss, used in pairs]


def test_a_single_trial_is_scaled() -> None:
    assert next_loss(trials((0.02, 1.2))) == pytest.approx(0.02 * 0.96 / 1.2)
    assert next_loss(trials((0.02, 0.5))) == pytest.approx(0.02 * 0.96 / 0.5)
    assert next_loss(trials((0.02, 40.0))) == pytest.approx(0.02 / 4)  # a step is bounded
    assert next_loss(trials((0.02, 0.01))) == pytest.approx(0.02 * 4)
    assert next_loss(trials((0.02, math.inf))) == pytest.approx(0.02 / 4)


def test_a_constant_loss_of_techniques_is_seen_after_two_trials() -> None:
    def used(loss: float) -> float:
        return 0.8 + 20 * loss  # 0.96 at 0.008

    first = 0.02
    second = next_loss(trials((first, used(first))))
    both = trials((first, used(first)), (second, used(second)))
    assert next_loss(both) == pytest.approx(0.008)


def test_trials_around_the_limits_are_joined_by_a_line() -> None:
    tried = trials((0.03, 1.5), (0.01, 0.5), (0.02, 1.1))
    assert next_loss(tried) == pytest.approx(0.02 + (0.96 - 1.1) / ((1.1 - 0.5) / 0.01))


def test_trials_on_one_side_of_the_limits_take_the_middle() -> None:
    tried = trials((0.01, 0.6), (0.03, 1.6), (0.02, 1.2))
    assert next_loss(tried) == pytest.approx((0.01 + 0.02) / 2)
    tried = trials((0.03, 1.6), (0.01, 0.6), (0.02, 0.7))
    assert next_loss(tried) == pytest.approx((0.02 + 0.03) / 2)


def test_trials_around_the_limits_end_the_search_where_nothing_lies_between_them() -> None:
    within = Tried(Rung("model", 0.018, 1000, 0.1), 0.85)

    def beyond(loss: float, bytes: int, seconds: float) -> Tried:
        return Tried(Rung("model", loss, bytes, seconds), 1.1)

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
    tried: list[tuple[float, float]],
) -> None:
    within = max((loss for loss, used in tried if used <= 1), default=0.0)
    beyond = min((loss for loss, used in tried if used > 1), default=math.inf)
    found = next_loss(trials(*tried))
    if within < beyond:
        assert within <= found <= beyond
    assert 0 < found < math.inf
