"""Whether a technique pays: predicted from the options, then measured by runs in turn.

A measurement counts where the quartiles of its rounds agree. On a busy machine they may never do:
then the prediction decides, and the report says so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tamiz.building.search.candidates import Write, write_candidate
from tamiz.building.search.limit_search import LimitSearch, Solution
from tamiz.building.search.problem import Problem, names
from tamiz.files.errors import TamizError
from tamiz.reporting.gate import Paying
from tamiz.system.cores import cores

#: Decode steps of a turn; turns of each bundle after a prompt; prompts until a measurement ends.
_STEPS, _TURNS, _PROMPTS = 8, 9, 5
#: Ratios whose quartiles are all so close to 1 are those of bundles that are as fast.
_AS_FAST = 0.01
_BUSY = "not measured: the machine is busy"


@dataclass(frozen=True)
class Speedup:
    """How much faster a bundle decodes than another one: the quartiles over rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, ratios: Iterable[float]) -> Speedup:
        """From the ratios of at least two rounds."""
        return cls(*statistics.quantiles(ratios, n=4, method="inclusive"))

    @property
    def faster(self) -> bool:
        """Whether three quarters of the rounds say so."""
        return self.low > 1

    @property
    def is_certain(self) -> bool:
        """Whether the quartiles allow a verdict: faster, slower or as fast."""
        as_fast = self.low >= 1 - _AS_FAST and self.high <= 1 + _AS_FAST
        return as_fast or self.faster or self.high < 1


@dataclass(frozen=True)
class Comparer:
    """Compares solutions by the speed and the size of their bundles.

    Attributes:
        write: Writes a bundle.
        work: Folder for the bundles.
        context: Tokens before the measured decode steps.
        by_size: Whether a smaller model may be slower.
    """

    write: Write
    work: Path
    context: int
    by_size: bool

    def compare(self, ours: Solution, theirs: Solution, which: str) -> tuple[bool, str]:
        """Whether a solution pays against another one, and by how much; `which` says how the other
        one is the best.

        It pays where it is faster, or smaller and not slower. Where `by_size`, smaller is enough.
        """
        mine, other = ours.spent, theirs.spent
        predicted = other.seconds / mine.seconds if mine.seconds else 1.0
        smaller = mine.bytes < other.bytes
        against = (
            f"× as fast as the {which} choice without it, "
            f"{mine.bytes / 1e6:.1f} instead of {other.bytes / 1e6:.1f} MB"
        )
        if predicted < 1 and not self.by_size:
            return False, f"predicted {predicted:.2f} {against}"
        speedup = self._measure(ours, theirs)
        if speedup is None:
            return predicted > 1 or smaller, f"{_BUSY}; predicted {predicted:.2f} {against}"
        may_be_kept = self.by_size or speedup.high >= 1
        pays = speedup.faster or (smaller and may_be_kept)
        return pays, f"measured {speedup.median:.2f} {against}"

    def _measure(self, ours: Solution, theirs: Solution) -> Speedup | None:
        places = self.work / "with", self.work / "without"
        for solution, place in zip((ours, theirs), places, strict=True):
            write_candidate(solution.decisions, place, self.write)
        return measure_speedup(*places, self.context)


def keep_what_pays(
    search: LimitSearch, solution: Solution, techniques: Collection[str], comparer: Comparer
) -> tuple[Solution, list[Paying]]:
    """The solution without the techniques that make the model neither smaller nor faster.

    Args:
        search: The search that found the solution.
        solution: The solution.
        techniques: Names of the techniques that have to pay.
        comparer: Compares solutions.
    """
    entries = []
    for name in sorted(techniques):
        if name not in search.problem.applied(solution.picks):
            reason = prediction(search.problem, solution.picks, name)
            entries.append(Paying(technique=name, applied=False, reason=reason))
        elif search.problem.goal.measured:
            search, solution, entry = _measured(search, solution, name, comparer)
            entries.append(entry)
    return solution, entries


def _measured(
    search: LimitSearch, solution: Solution, name: str, comparer: Comparer
) -> tuple[LimitSearch, Solution, Paying]:
    """The better of a solution and one without a technique that it applies, and why."""
    problem = search.problem.without(name)
    # Trials take minutes: what beats a wide prediction needs none.
    pays, reason = comparer.compare(solution, search.predicted(problem), "predicted best")
    if not pays:
        other = search.another(problem)
        try:
            best = other.find()
        except TamizError:
            pays, reason = True, "no choice without it is within the limits"
        else:
            pays, reason = comparer.compare(solution, best, "best")
            if not pays:
                search, solution = other, best
    return search, solution, Paying(technique=name, applied=pays, reason=reason)


def prediction(problem: Problem, picks: Sequence[int], technique: str) -> str:
    """Why no option with a technique was chosen: its curve of time and loss.

    Args:
        problem: The options.
        picks: The chosen ones.
        technique: A technique that acts in none of them.
    """
    curve: dict[str, list[float]] = {}
    for weight, pick in zip(problem.weights, picks, strict=True):
        for option, plans in zip(weight.options, weight.plans, strict=True):
            if technique in names(plans):
                strength = option.name.rpartition(", ")[2]
                sums = curve.setdefault(strength, [0.0, 0.0, 0.0])
                sums[0] += option.seconds
                sums[1] += weight.options[pick].seconds
                sums[2] += option.loss - weight.options[pick].loss
    points = [
        f"{strength} takes {ours / max(theirs, 1e-12):.2f} × the time and loses {loss:.2g} nats"
        for strength, (ours, theirs, loss) in curve.items()
    ]
    return f"predicted against the chosen formats: {'; '.join(points) or 'it acts nowhere'}"


def measure_speedup(ours: Path, theirs: Path, context: int) -> Speedup | None:
    """How much faster a bundle decodes than another one.

    Args:
        ours: A bundle.
        theirs: Another one of the same model.
        context: Tokens before the steps; fewer where the model's limit is lower.

    Returns:
        The speedup; None where the rounds differ too much for a verdict.
    """
    from tamiz.evaluation.bench import bundle_child

    with ExitStack() as loaded:
        children = [
            loaded.enter_context(closing(bundle_child(path, cores()))) for path in (ours, theirs)
        ]
        room = min(child.limit for child in children) - (_TURNS + 1) * _STEPS

        def begin() -> None:
            for child in children:
                child.prefill(max(1, min(context, room)))
                child.decode(_STEPS)

        return speedup_of_rounds(begin, *(partial(child.decode, _STEPS) for child in children))


def speedup_of_rounds(
    begin: Callable[[], None], ours: Callable[[], float], theirs: Callable[[], float]
) -> Speedup | None:
    """Measures two speeds in turn until the quartiles of their ratios allow a verdict.

    Args:
        begin: Begins anew, which is not measured.
        ours: Runs a turn; returns its tokens per second.
        theirs: The same of the other one.

    Returns:
        The speedup; None where no number of rounds allowed a verdict.
    """
    ratios: list[float] = []
    for _ in range(_PROMPTS):
        begin()
        for turn in range(_TURNS):
            # Each goes first in every other turn: what comes second finds other caches.
            speeds = (ours(), theirs()) if turn % 2 else (theirs(), ours())[::-1]
            ratios.append(speeds[0] / speeds[1])
        if (speedup := Speedup.of(ratios)).is_certain:
            return speedup
    return None
