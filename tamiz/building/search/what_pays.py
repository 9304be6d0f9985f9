"""Whether a technique pays: predicted from the rungs, then measured by runs in turn."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from tamiz.building.search.problem import Problem, names
from tamiz.system.cores import cores

#: Decode steps of a turn, and turns of each bundle.
_STEPS, _TURNS = 8, 9


def prediction(problem: Problem, picks: Sequence[int], technique: str) -> str:
    """Why no rung of a technique was chosen: its curve of time and loss.

    Args:
        problem: The ladders.
        picks: The chosen rungs.
        technique: A technique that is on none of them.
    """
    curve: dict[str, list[float]] = {}
    for ladder, pick in zip(problem.ladders, picks, strict=True):
        for rung, plans in zip(ladder.rungs, ladder.plans, strict=True):
            if technique in names(plans):
                strength = rung.name.rpartition(", ")[2]
                sums = curve.setdefault(strength, [0.0, 0.0, 0.0])
                sums[0] += rung.seconds
                sums[1] += ladder.rungs[pick].seconds
                sums[2] += rung.loss - ladder.rungs[pick].loss
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
