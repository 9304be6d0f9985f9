"""Candidates of a build, run in onnxruntime and scored against dense.

A plan with techniques that act on steps only is scored in steps as well: on the same text, in
windows of 1,024 tokens instead of 512, so that what grows with the context shows, and there the
last 256 tokens of each. Techniques of the attention that rest at short contexts get windows as long
as they need.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.building.fit.selection import Slot
from tamiz.calibration.file import WINDOW, Calibration
from tamiz.files.errors import TamizError, naming
from tamiz.planning.choice import Choice
from tamiz.system.cores import cores
from tamiz.system.progress import Progress

if TYPE_CHECKING:
    from tamiz.evaluation.scores import Reference
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.model import Model

#: Windows of calibration text that are scored.
_WINDOWS = 8
#: Windows that the model writes where there is no calibration.
_GENERATED_WINDOWS = 4
#: Tokens of a window that is joined where no technique needs longer ones, and most tokens at the
#: end of a window that are read in steps: what steps lose beside a prompt varies little.
JOINED, _STEPS = 2 * WINDOW, 256


@dataclass(frozen=True)
class Candidates:
    """How candidates are made and scored.

    Attributes:
        reference: The dense model's scores, by a model of one thread.
        windows: Tokens of each window of the text.
        step_rows: Tokens of a step where they are read by steps as well, see
            `tamiz.planning.choice.step_rows`; None.
        folder: Where candidates are written, one after the other.
        write: Writes the bundle of a candidate into a folder.
        progress: Told of every candidate.
    """

    reference: Reference
    windows: list[list[int]]
    step_rows: int | None
    folder: Path
    write: Callable[[Sequence[Slot], Path], None]
    progress: Progress

    def score(self, slots: Sequence[Slot]) -> dict[str, float]:
        """Quality of a candidate; see `tamiz.evaluation.evaluate`.

        Raises:
            RuntimeError: It does not run.
        """
        from tamiz.evaluation.evaluate import compare, steps_of
        from tamiz.runtime.model import Model

        def report(done: int) -> None:
            self.progress("score a candidate", done, len(self.windows))

        report(0)
        candidate = load_candidate(slots, self.folder, self.write)
        assert isinstance(candidate, Model)
        steps = steps_of(self.step_rows, first_step(self.windows))
        result = compare(candidate, self.reference, self.windows, steps, cores(), report)
        measured = {
            "dppl": result.dppl,
            "kl_mean": result.kl_mean,
            **{
                name: value
                for name in ("dppl_error", "kl_error")
                if (value := getattr(result, name)) is not None
            },
            "ppl": result.built.ppl,
            "ppl_dense": result.dense.ppl,
        }
        decoded = {
            "ppl_decode": result.built.ppl_decode,
            "ppl_decode_dense": result.dense.ppl_decode,
            "kl_decode": result.kl_decode,
        }
        return measured | {name: value for name, value in decoded.items() if value is not None}


def load_candidate(
    slots: Sequence[Slot], folder: Path, write: Callable[[Sequence[Slot], Path], None]
) -> Model | Encoder:
    """Writes the bundle of a candidate and opens it with one thread.

    Args:
        slots: Its slots.
        folder: Where it is written; what is there is replaced.
        write: Writes a bundle into a folder.

    Raises:
        RuntimeError: The candidate does not run.
    """
    from tamiz.runtime.load import load_model

    shutil.rmtree(folder, ignore_errors=True)
    with naming(folder):
        folder.mkdir(parents=True)
        write(slots, folder)
    try:
        return load_model(folder, threads=1)
    except TamizError as error:
        raise RuntimeError(f"the built model does not run: {error}") from error


def first_step(windows: Sequence[Sequence[int]]) -> int:
    """The first position of windows that is read in steps: late, in the middle of short ones."""
    from tamiz.evaluation.evaluate import LATE

    length = len(windows[0])
    return max(LATE, length // 2, length - _STEPS)


def applied(slots: Iterable[Slot]) -> list[Choice]:
    """What slots apply."""
    return [slot.accepted.choice for slot in slots if slot.accepted]


def gate_windows(
    reference: Model, known: Calibration | None, length: int, progress: Progress
) -> list[list[int]]:
    """The text that candidates are scored on.

    Args:
        reference: The dense model.
        known: The calibration; without one the dense model writes the text.
        length: Tokens that windows are joined to, where there are so many; 512 for none.
        progress: Told of the text that is written.
    """
    from tamiz.calibration.generated_text import generate_windows
    from tamiz.runtime.model import Model

    if known is not None and known.tokens:
        windows = known.judging or known.tokens
    else:
        written = generate_windows(
            Model.load(reference.bundle.path),
            _GENERATED_WINDOWS,
            min(WINDOW, reference.limit),
            lambda done, total: progress("write a text", done, total),
        )
        windows = [list(window.tokens) for window in written]
    return _joined(windows, min(length, reference.limit))[:_WINDOWS]


def judging_windows(known: Calibration, length: int) -> list[list[int]]:
    """Some windows that nothing was fitted to.

    Args:
        known: The calibration.
        length: Tokens that windows are joined to, where there are so many.

    Raises:
        TamizError: The calibration keeps no such window.
    """
    return _joined(judging(known), length)[:_WINDOWS]


def judging(known: Calibration) -> list[list[int]]:
    """All windows that nothing was fitted to.

    Raises:
        TamizError: The calibration keeps no such window.
    """
    windows = known.judging
    if not windows:
        raise TamizError(
            f"the calibration keeps {len(known.tokens)} windows of {WINDOW} tokens, expected at "
            "least 2: one predicts losses, the others judge"
        )
    return windows


def _joined(windows: list[list[int]], length: int) -> list[list[int]]:
    """Windows that follow each other as one, as many as `length` tokens hold."""
    count = min(max(1, length // len(windows[0])), len(windows))
    starts = range(0, len(windows) - count + 1, count)
    return [list(chain.from_iterable(windows[start : start + count])) for start in starts]
