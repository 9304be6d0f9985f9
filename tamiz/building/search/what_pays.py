"""Whether a technique pays: predicted from the options, then measured by runs in turn."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from tamiz.building.search.candidates import Write, write_candidate
from tamiz.building.search.limit_search import LimitSearch, Solution
from tamiz.building.search.problem import Problem, names
from tamiz.files.errors import TamizError
from tamiz.reporting.gate import Paying
from tamiz.system.cores import cores

#: Decode steps of a turn, and turns of each bundle.
_STEPS, _TURNS = 8, 9


@dataclass(frozen=True)
class Comparer:
    """Compares solutions by the speed and the size of their bundles.

    Attributes:
        write: Writes a bundle.
        work: Folder for the bundles.
        context: Tokens before the measured decode steps.
    """

    write: Write
    work: Path
    context: int

    def compare(self, ours: Solution, theirs: Solution, which: str) -> tuple[bool, str]:
        """Whether a solution is smaller or faster than another one, and by how much; `which` says
        how the other one is the best."""
        places = self.work / "with", self.work / "without"
        for solution, place in zip((ours, theirs), places, strict=True):
            write_candidate(solution.decisions, place, self.write)
        ratio = speed_ratio(*places, self.context)
        sizes = ours.spent.bytes, theirs.spent.bytes
        reason = (
            f"measured {ratio:.2f} × as fast as the {which} choice without it, "
            f"{sizes[0] / 1e6:.1f} instead of {sizes[1] / 1e6:.1f} MB"
        )
        return ratio > 1 or sizes[0] < sizes[1], reason


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


def speed_ratio(ours: Path, theirs: Path, context: int) -> float:
    """How much faster a bundle decodes than another: the median over turns.

    Args:
        ours: A bundle.
        theirs: Another one of the same model.
        context: Tokens before the steps; fewer where the model's limit is lower.
    """
    from tamiz.evaluation.bench import bundle_child

    with ExitStack() as loaded:
        children = [
            loaded.enter_context(closing(bundle_child(path, cores()))) for path in (ours, theirs)
        ]
        room = min(child.limit for child in children) - (_TURNS + 1) * _STEPS
        for child in children:
            child.prefill(max(1, min(context, room)))
            child.decode(_STEPS)
        ratios = []
        for turn in range(_TURNS):
            first, second = children if turn % 2 else children[::-1]
            speeds = {first: first.decode(_STEPS), second: second.decode(_STEPS)}
            ratios.append(speeds[children[0]] / speeds[children[1]])
    return statistics.median(ratios)
