"""Scores of the tokens of a window, and how a model reads it: as a prompt, or token by token."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from itertools import chain, islice, pairwise
from pathlib import Path
from threading import get_ident

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluation.windows import window_hash
from tamiz.runtime.model import Model
from tamiz.runtime.sequence import Logits, Sequence

#: Positions of a run, whose logits are in memory at a time; and of a comparison, which stays in the
#: cache.
_SLICE, _ROWS = 256, 4
#: Likeliest tokens that are compared, and tokens of a run; see `likeliest`.
_LIKELIEST, _RUN = 10, 128

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

#: Scores of some positions: their nll ``[n]`` and all log p ``[n, V]``.
Scores = tuple[Float64, Float32]
#: The same, and the 10 likeliest tokens ``[n, 10]``, the likeliest first.
DenseScores = tuple[Float64, Float32, NDArray[np.intp]]


@dataclass(frozen=True)
class Steps:
    """Which tokens of a window are read by steps, beside reading all of it as a prompt.

    Attributes:
        start: First position that is predicted by a step.
        rows: Tokens of a step: 1, or more where all that acts on single tokens acts on so many.
    """

    start: int
    rows: int = 1

    @property
    def first_row(self) -> int:
        """The first row of logits that `Reading.stepped` gives: whole blocks follow."""
        return (self.start - 1) // _ROWS * _ROWS


@dataclass(frozen=True)
class DenseReference:
    """The dense model's scores of windows that are read as prompts.

    Attributes:
        model: The dense model.
        folder: Folder that keeps log p, rounded to float16, if the file system has room. Each
            window then runs once, however often its scores are read.
    """

    model: Model
    folder: Path | None = None
    _kept: dict[tuple[int, ...], tuple[Path, list[tuple[Float64, NDArray[np.intp]]]]] = field(
        default_factory=dict
    )

    def scores(self, window: Ids[int]) -> Iterator[DenseScores]:
        """Scores of all tokens of a window but the first, some positions at a time."""
        key = tuple(window)
        if key in self._kept:
            return self._load(*self._kept[key])
        needed = 2 * len(window) * self.model.vocabulary
        if self.folder is None or shutil.disk_usage(self.folder).free < 2 * needed:
            return self._run(window)
        file = self.folder / f"dense-{window_hash(window)[:16]}.float16"
        # A text may hold a window twice, and another thread may read the other one's file.
        kept, part = [], file.with_name(f"{file.name}.{get_ident()}")
        with part.open("wb") as stream:
            for nll, log_p, likely in self._run(window):
                stream.write(log_p.astype(np.float16).tobytes())
                kept.append((nll, likely))
        part.replace(file)
        self._kept[key] = file, kept
        return self._load(file, kept)

    def _run(self, window: Ids[int]) -> Iterator[DenseScores]:
        for nll, log_p in score(window, Reading(self.model, window).prompt()):
            yield nll, log_p, likeliest(log_p)

    def _load(
        self, file: Path, kept: Iterable[tuple[Float64, NDArray[np.intp]]]
    ) -> Iterator[DenseScores]:
        with file.open("rb") as stream:
            for nll, likely in kept:
                rows = np.fromfile(stream, np.float16, len(nll) * self.model.vocabulary)
                yield nll, rows.reshape(len(nll), -1).astype(np.float32), likely


def likeliest(log_p: Float32) -> NDArray[np.intp]:
    """The 10 likeliest tokens of each row, the likeliest first, the lower id first where equal.

    They are among the runs of tokens with the largest maxima, which takes one pass to find.
    """
    n, vocabulary = log_p.shape
    starts = np.arange(0, vocabulary, _RUN)
    largest = np.maximum.reduceat(log_p, starts, axis=1)
    runs = np.sort(np.argsort(-largest, axis=1, kind="stable")[:, :_LIKELIEST], axis=1)
    tokens = (_RUN * runs[:, :, None] + np.arange(_RUN)).reshape(n, -1)
    values = np.take_along_axis(log_p, np.minimum(tokens, vocabulary - 1), axis=1)
    values[tokens >= vocabulary] = -np.inf
    count = min(_LIKELIEST, vocabulary)
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(tokens, order, axis=1)


def score(window: Ids[int], blocks: Iterable[Logits], start: int = 0) -> Iterator[Scores]:
    """Scores of the tokens of a window from the logits before them, from row `start` on."""
    targets = np.array(window[1:])
    for logits in blocks:
        # The sums are float64; rounded to float32 a log p of 10 has an error of 5e-7.
        log_p = logits - logits.max(axis=1, keepdims=True)
        sums = np.log(np.exp(log_p).sum(axis=1, dtype=np.float64))
        rows = np.arange(len(log_p))
        nll = sums - log_p[rows, targets[start + rows]]
        log_p -= sums[:, None].astype(np.float32)
        yield nll, log_p
        start += len(log_p)


@dataclass
class Reading:
    """How a model reads a window: as a prompt, and in steps from the same first tokens on.

    Attributes:
        model: The model.
        window: The tokens.
        steps: Which of them are read by steps; None for none.
    """

    model: Model
    window: Ids[int]
    steps: Steps | None = None
    _before: Sequence | None = None

    def prompt(self) -> Iterator[Logits]:
        """Logits of the window as a prompt, some rows at a time."""
        context, steps = self.window[:-1], self.steps
        first = steps.first_row if steps else 0
        sequence = self.model.sequence(len(context))
        starts = [*range(0, first, _SLICE), *range(first, len(context), _SLICE)]
        for start, end in pairwise([*starts, len(context)]):
            if steps and start == first:
                self._before = self.model.sequence(len(context))
                self._before.take(sequence)
            logits = sequence.logits(context[start:end])
            for row in range(0, len(logits), _ROWS):
                yield logits[row : row + _ROWS]

    def stepped(self) -> Iterator[Logits]:
        """Logits of the rows from `Steps.first_row` on; position `Steps.start` and those that
        follow are predicted by steps.

        Call it after `prompt` gave that row: what precedes it is not read again.
        """
        assert self.steps is not None
        assert self._before is not None
        context, first, start = self.window[:-1], self.steps.first_row, self.steps.start
        sequence, self._before = self._before, None
        before: Iterable[Logits] = ()
        if first < start - 1:
            before = sequence.logits(context[first : start - 1]).copy()
        rows = chain(before, _step_rows(sequence, context[start - 1 :], self.steps.rows))
        while block := list(islice(rows, _ROWS)):
            yield np.stack(block)


def _step_rows(sequence: Sequence, tokens: Ids[int], rows: int) -> Iterator[Logits]:
    """The logits after each token."""
    for start in range(0, len(tokens), rows):
        if rows == 1:
            yield sequence.step(tokens[start]).copy()
        else:
            yield from sequence.logits(tokens[start : start + rows]).copy()
