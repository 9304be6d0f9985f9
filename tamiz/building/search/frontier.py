"""The frontier of a model: the best choice at each of several losses, some of them measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from tamiz.building.search.limit_search import Fits, predictions
from tamiz.building.search.problem import Problem
from tamiz.reporting.gate import TrialReport

#: Largest predicted loss of a frontier, in nats per token.
_MOST_LOSS = 0.5


def frontier(
    problem: Problem, fits: Fits, keep: Callable[[TrialReport], None]
) -> list[TrialReport]:
    """A trial for each point from the limit of KL on.

    Losses that are not measured are predicted, corrected by those that are.

    Args:
        problem: The options; its bound is the first loss.
        fits: Makes and measures candidates.
        keep: Called with a trial that was measured, while its candidate is there.
    """
    goal, first = problem.goal, problem.bound
    assert first is not None
    steps = [(_MOST_LOSS / first) ** (n / max(1, goal.points - 1)) for n in range(goal.points)]
    points = list(dict.fromkeys(tuple(problem.solve(first * step)) for step in steps))
    step = (len(points) - 1) / max(1, goal.samples - 1)
    factors: list[float] = []
    measured: dict[tuple[int, ...], TrialReport] = {}
    for picks in dict.fromkeys(points[round(n * step)] for n in range(goal.samples)):
        tried = fits.try_out(problem, picks, 1.0)
        trial = measured[picks] = fits.candidates.trials[-1]
        keep(trial)
        factors += [(trial.kl_mean or 0.0) / tried.number] if tried.number else []
    factor = statistics.median(factors) if factors else 1.0

    def predicted(picks: tuple[int, ...]) -> TrialReport:
        spent = problem.spent(picks)
        about = predictions(problem, spent)
        return fits.candidates.report(factor * spent.loss, holds=False, **about)

    return [measured.get(picks) or predicted(picks) for picks in points]
