"""What judges share that bound a loss of 1 - cosine by --min-cosine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tamiz.evaluation.judges.judge import Judge
from tamiz.planning.goal import Goal


class CosineJudge(Judge):
    """Measures what candidates lose as 1 - cosine; its first measure is the cosine."""

    decodes = False

    @classmethod
    def limit(cls, goal: Goal) -> float | None:
        """As 1 - cosine."""
        return None if goal.min_cosine is None else 1 - goal.min_cosine

    @classmethod
    def own_limits(cls, goal: Goal) -> Goal:
        """See `Judge`."""
        return replace(goal, max_dppl=None, max_kl=None)

    @classmethod
    def reported(cls, loss: float) -> float | None:
        """As 1 - cosine."""
        return loss

    @classmethod
    def limit_words(cls, gate: Any) -> list[str]:
        """See `Judge`."""
        return [] if gate.min_cosine is None else [f"cosine {gate.min_cosine:g}"]

    @classmethod
    def missed_words(cls, trial: Any) -> tuple[list[str], str]:
        """See `Judge`."""
        cosine = getattr(trial, cls.measures[0].name)
        losses = [] if cosine is None else [f"{1 - cosine:.2g} of cosine"]
        return losses, "lower --min-cosine"
