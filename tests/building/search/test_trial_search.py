"""The search that strengths, budgets and limits share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamiz.building.search.trial_search import TrialSearch, Tried
from tamiz.evaluation.judges.judge import Quality


class Cubic(TrialSearch[float]):
    """A number whose cube loses; the search believes in its square."""

    most_trials, share, enough = 8, 0.9, 0.8

    def __init__(self, largest: float) -> None:
        super().__init__()
        self.largest = largest

    def first(self) -> float:
        return 1.0

    def aim(self) -> float:
        last = self.tried[-1]
        factor = (self.share / max(last.used, 1e-9)) ** 0.5
        return last.number * min(self.step, max(1 / self.step, factor))

    def measure(self, number: float) -> Tried[float]:
        used = (number / self.largest) ** 3
        return Tried(number, Quality(used, None, used), number)


@given(st.floats(0.02, 50.0))
def test_the_largest_number_within_the_limits_is_approached(largest: float) -> None:
    best = Cubic(largest).run()
    assert best is not None
    assert best.holds
    assert 0.8 ** (1 / 3) * largest <= best.number <= largest


def test_no_trial_within_the_limits_is_none() -> None:
    search = Cubic(1e-9)
    assert search.run() is None
    assert len(search.tried) == search.most_trials
    assert search.beyond is not None
    assert search.beyond.number == pytest.approx(4.0 ** (1 - search.most_trials))


def test_numbers_lie_in_the_bracket() -> None:
    search = Cubic(3.0)
    search.run()
    for count in range(1, len(search.tried)):
        before = search.tried[:count]
        number = search.tried[count].number
        assert all(trial.number < number for trial in before if trial.holds)
        assert all(number < trial.number for trial in before if not trial.holds)
