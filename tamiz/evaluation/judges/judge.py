"""How a kind of model is held to quality: what is read, the loss, and its words.

A judge belongs to one kind of model, such as decoders. A new kind is a module beside this one and
its name in `tamiz.evaluation.judges.JUDGES`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from tamiz.evaluation.windows import Window
from tamiz.files.bundle import Bundle
from tamiz.planning.goal import Goal

if TYPE_CHECKING:
    from tamiz.survey.survey import Survey

#: What a judge reads: text of a calibration's file, the text that ships with tamiz and texts that
#: were given, text that the model wrote, inputs of files, or inputs that were made up.
WhatIsRead = Literal["calibration", "domains", "the model's own", "samples", "made-up inputs"]

#: Those that are no text.
INPUTS = ("samples", "made-up inputs")

#: Tokens of a window of held-out text where decode steps are taken and no technique needs more.
JOINED = 1024


class Figure(NamedTuple):
    """One number that shows a loss.

    Attributes:
        name: Its attribute of the trials in a report.
        value: What was measured.
    """

    name: str
    value: float


class DomainFigures(NamedTuple):
    """What a candidate loses on one domain.

    Attributes:
        name: The domain.
        windows: Windows, of an encoder texts, that were read.
        figures: The numbers that show the loss.
    """

    name: str
    windows: int
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class Quality:
    """What a candidate loses against the dense model.

    Attributes:
        loss: What limits bound: of a decoder in nats per token, of an encoder 1 - cosine. An upper
            bound, see `upper`. Infinite where a measurement is not finite.
        error: Standard error of the mean loss; None for a single window.
        used: The largest share of a limit that the loss uses; the limits hold up to 1.
        shown: The numbers that show the loss, for the report.
        domains: The same for each domain.
    """

    loss: float
    error: float | None
    used: float
    shown: tuple[Figure, ...] = ()
    domains: tuple[DomainFigures, ...] = ()


class Measure(NamedTuple):
    """A loss as people read it.

    Attributes:
        name: Its attribute of the trials in a report.
        limit: The attribute of the gate that bounds it.
        label: What it is called.
        title: What its mean over the text is called.
        axis: Title of its axis in a plot.
        predicted: What a predicted loss is called.
        of_value: The number on the axis, for a value or a limit.
        unit: Unit of that number.
    """

    name: str
    limit: str
    label: str
    title: str
    axis: str
    predicted: str
    of_value: Callable[[float], float] = lambda value: value
    unit: str = ""


@dataclass(frozen=True)
class HeldOut:
    """What a judge may read; each takes what its kind of model needs.

    Attributes:
        windows: Gives windows of text; what they are of is their domain.
        origin: What the windows are of.
        context: Tokens of a window in which all techniques act, for the most that the model takes.
        step_rows: Tokens of a decode step where a candidate takes steps as well, see
            `tamiz.planning.choice.step_rows`; None.
        samples: ``.npz`` files with an input of the model each.
        vocabulary: Integers of inputs that are made up are below this; None where it is not known.
    """

    windows: Callable[[], Sequence[Window]]
    origin: WhatIsRead
    context: Callable[[int], int]
    step_rows: int | None = None
    samples: tuple[Path, ...] = ()
    vocabulary: int | None = None


class Judge(ABC):
    """Measures what candidates of one kind of model lose.

    Attributes:
        goal: The limits.
        read: What is read.
        windows: Windows of text, or inputs, that are read.
        window_tokens: Tokens of each; None where it is no text.
        steps: Whether candidates take decode steps as well.
    """

    #: The losses as people read them; the first one is shown unless another one alone is bounded.
    measures: ClassVar[tuple[Measure, ...]]
    #: Columns of trials in a report: the title, and the attribute of the trial.
    columns: ClassVar[tuple[tuple[str, str], ...]]
    #: Columns of domains in a report: the title, and the attribute of the domain.
    domain_columns: ClassVar[tuple[tuple[str, str], ...]]
    #: Whether the model takes decode steps, whose speed can be predicted.
    decodes: ClassVar[bool]
    #: What a loss is reported for beside the whole, and what is read of each.
    part: ClassVar[str] = "domain"
    parts_read: ClassVar[str] = "windows"
    #: Whether losses of formats are predicted, on text.
    predicts: ClassVar[bool] = True
    #: The recipe of a build that requests nothing; None for what is on by default alone.
    recipe: ClassVar[str | None] = None

    goal: Goal
    read: WhatIsRead
    windows: int
    window_tokens: int | None
    steps: bool = False

    @abstractmethod
    def __init__(self, dense: Bundle, goal: Goal, held_out: HeldOut, folder: Path) -> None:
        """Loads the dense model.

        Args:
            dense: The dense bundle.
            goal: The limits.
            held_out: What may be read.
            folder: Keeps what the dense model gives, as long as the build.

        Raises:
            TamizError: The dense model does not run, or no valid input is known.
        """

    @classmethod
    @abstractmethod
    def is_for(cls, survey: Survey) -> bool:
        """Whether a model is of the kind."""

    @classmethod
    @abstractmethod
    def limit(cls, goal: Goal) -> float | None:
        """The largest `Quality.loss` that a goal accepts; None where it bounds no loss."""

    @classmethod
    @abstractmethod
    def own_limits(cls, goal: Goal) -> Goal:
        """A goal without the limits of loss of other kinds."""

    @classmethod
    @abstractmethod
    def applicable(cls, goal: Goal, model: Path) -> Goal:
        """A goal that means something for the kind.

        Of a budget of perplexity and one of cosines that are both given, the one that applies.

        Raises:
            TamizError: Another limit does not apply; names it.
        """

    @classmethod
    @abstractmethod
    def reported(cls, loss: float) -> float | None:
        """A predicted loss as reports have it."""

    @classmethod
    @abstractmethod
    def fitting_parts(
        cls, windows: Sequence[list[int]], dense: Bundle, most: Callable[[int], int]
    ) -> list[list[int]]:
        """What predictions of losses read: pieces of fitting windows.

        Args:
            windows: Token ids of some windows.
            dense: The dense bundle.
            most: How many pieces of so many tokens fit in memory where all are kept.

        Raises:
            TamizError: The model reads no text.
        """

    @abstractmethod
    def score(self, candidate: Path, exact: bool, progress: Callable[[int], None]) -> Quality:
        """What a candidate loses.

        Args:
            candidate: Its bundle.
            exact: Whether no technique of it changes a value.
            progress: Takes the number of windows or inputs that are scored.

        Raises:
            RuntimeError: It does not run.
        """

    @classmethod
    def read_words(cls, gate: Any) -> str:
        """What the trials of a gate of a report read, in a few words."""
        texts = {"domains": "of the domains", "the model's own": "that the model wrote"}
        if gate.result is not None:
            texts["domains"] = f"of {len(gate.result.domains)} domains"
        origin = texts.get(gate.text, "of the calibration text")
        return f"{gate.windows} windows of {gate.window_tokens} tokens {origin}"

    @classmethod
    @abstractmethod
    def headline(cls, gate: Any, trial: Any) -> tuple[str, str, str]:
        """The loss of a trial of a report: its number, what it is of, and how it was measured."""

    @classmethod
    @abstractmethod
    def limit_words(cls, gate: Any) -> list[str]:
        """The limits of a gate of a report, in a few words each."""

    @classmethod
    @abstractmethod
    def loss_words(cls, gate: Any, trial: Any) -> list[str]:
        """What a trial of a report loses, with standard errors and limits."""

    @classmethod
    @abstractmethod
    def missed_words(cls, trial: Any) -> tuple[list[str], str]:
        """What the closest trial loses where none is within the limits, and what to change."""


def share(loss: float, limit: float, exact: bool) -> float:
    """The share of a limit that a loss uses: of a limit of 0 all, or infinitely much.

    Args:
        loss: The measured loss.
        limit: The largest accepted loss.
        exact: Whether no technique of the candidate changes a value. Then a loss above a limit of 0
            is rounding, since two programs add in different orders.
    """
    if limit > 0:
        return loss / limit
    return 1.0 if loss <= 0 or (exact and math.isfinite(loss)) else math.inf


def evenly(items: Sequence[list[int]], most: int) -> list[list[int]]:
    """At most so many of some windows, evenly spaced."""
    count = min(most, len(items))
    return [items[number * len(items) // count] for number in range(count)]


#: Standard errors that an upper bound lies above the mean, and how many times the limit a single
#: domain may lose.
_ERRORS, _ONE_DOMAIN = 2.0, 2.0
#: One-sided 90 % quantile of a normal deviate.
_QUANTILE = 1.2816
#: Fewest domains that tell how much domains differ.
_SPREAD = 3


def upper(mean: float, error: float | None, domains: Sequence[float] = ()) -> float:
    """What bounds a loss from above: the number that is held to a limit.

        max( mean + 2 standard errors,   max over domains / 2 )

    Args:
        mean: The mean loss, over domains where there are several.
        error: Its standard error; None where it is not known.
        domains: The loss on each domain.
    """
    bound = mean + _ERRORS * (error or 0.0)
    return max([bound, *(loss / _ONE_DOMAIN for loss in domains)])


def unseen(domains: Sequence[float]) -> float:
    """What a domain is going to lose that none of these is, with nine chances in ten.

    Each domain in turn is left out and compared with the mean of the others. The mean of all is
    raised by 1.28 times the root mean square of these differences: a domain that is to the others
    as they are to each other loses more than that in one case of ten.

    Args:
        domains: The loss on each domain; of fewer than three the largest counts.
    """
    count = len(domains)
    if count < _SPREAD:
        return max(domains)
    total = sum(domains)
    left_out = [loss - (total - loss) / (count - 1) for loss in domains]
    spread = math.sqrt(sum(each**2 for each in left_out) / count)
    return total / count + _QUANTILE * spread
