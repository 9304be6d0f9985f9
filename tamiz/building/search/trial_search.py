"""The search of every build: trials of one number until one of them uses most of the limits.

The number is what a build may raise while the model stays within its limits: the strength of
techniques, the predicted loss, how many sites keep a technique. A larger number loses more. Each
trial builds a candidate and measures the share of the limits that it uses:

    bracket   the largest number within the limits, and the smallest one beyond them
    aim       where the limits are nearly used, from the trials so far
    middle    of the bracket, where the aim lies outside of it
    stop      at a trial within the limits that uses enough of them, or after the last one
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from tamiz.evaluation.judges.judge import Quality

Candidate = TypeVar("Candidate")


@dataclass(frozen=True)
class Tried(Generic[Candidate]):
    """One trial.

    Attributes:
        number: What was tried; a larger number loses more.
        quality: What the candidate loses.
        candidate: What was built.
    """

    number: float
    quality: Quality
    candidate: Candidate

    @property
    def used(self) -> float:
        """The share of the limits that the candidate uses."""
        return self.quality.used

    @property
    def holds(self) -> bool:
        """Whether it is within the limits."""
        return self.used <= 1


class TrialSearch(ABC, Generic[Candidate]):
    """Trials of one number; a subclass says how a candidate is built and where to aim.

    Attributes:
        tried: The trials so far.
        left: How many trials are left.
        lowest: What is below every number.
        highest: What is above every number.
    """

    #: Largest number of trials.
    most_trials: ClassVar[int]
    #: Share of the limits that a trial aims at, and the one that ends the search.
    share: ClassVar[float]
    enough: ClassVar[float]
    #: Largest factor between the numbers of two trials.
    step: ClassVar[float] = 4.0

    def __init__(self) -> None:
        """Begins without a trial."""
        self.tried: list[Tried[Candidate]] = []
        self.left = self.most_trials
        self.lowest, self.highest = 0.0, math.inf

    @abstractmethod
    def first(self) -> float:
        """The number of the first trial."""

    @abstractmethod
    def measure(self, number: float) -> Tried[Candidate] | None:
        """Builds and measures a candidate; None where there is none that was not tried."""

    @abstractmethod
    def aim(self) -> float:
        """The number at which the trials so far let `share` of the limits be used."""

    def run(self) -> Tried[Candidate] | None:
        """The last trial within the limits; None where there is none."""
        number = self.first()
        while self.left and (trial := self.measure(number)) is not None:
            self.tried.append(trial)
            self.left -= 1
            if self.is_enough():
                break
            number = self.next()
        return self.best

    @property
    def best(self) -> Tried[Candidate] | None:
        """The last trial within the limits."""
        return next((trial for trial in reversed(self.tried) if trial.holds), None)

    @property
    def within(self) -> Tried[Candidate] | None:
        """The trial of the largest number within the limits."""
        holding = (trial for trial in self.tried if trial.holds)
        return max(holding, key=lambda trial: trial.number, default=None)

    @property
    def beyond(self) -> Tried[Candidate] | None:
        """The trial of the smallest number beyond the limits."""
        failing = (trial for trial in self.tried if not trial.holds)
        return min(failing, key=lambda trial: trial.number, default=None)

    def is_enough(self) -> bool:
        """Whether the last trial ends the search."""
        return self.enough <= self.tried[-1].used <= 1

    def next(self) -> float:
        """The number of the next trial, within the bracket."""
        low, high = self.bracket()
        target = self.aim()
        return target if low < target < high else self.middle(low, high)

    def bracket(self) -> tuple[float, float]:
        """Between which numbers the limits are used."""
        low = self.within.number if self.within else self.lowest
        return low, self.beyond.number if self.beyond else self.highest

    def middle(self, low: float, high: float) -> float:
        """The geometric middle of the bracket; of one without an end, of a step."""
        if math.isinf(high):
            high = self.step * max(self.tried[-1].number, low)
        return math.sqrt(max(low, high / 16) * high)
