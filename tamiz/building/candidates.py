"""Candidates of a build, run in onnxruntime and scored against dense.

A plan with techniques that act on single-token steps only is scored token by token as well: on the
same text, in windows of 1,024 tokens instead of 512, so that what grows with the context shows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.building.selection import Slot
from tamiz.calibration.file import WINDOW, Calibration
from tamiz.files.errors import TamizError, naming
from tamiz.planning.machine import cores

if TYPE_CHECKING:
    from tamiz.evaluation.evaluate import Reference
    from tamiz.runtime.model import Model

#: Windows of calibration text that are scored.
_WINDOWS = 8
#: Windows that the model writes where there is no calibration.
_GENERATED_WINDOWS = 4

#: Called with what is being done, steps done and steps in all.
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Candidates:
    """How candidates are made and scored.

    Attributes:
        reference: The dense model's scores, by a model of one thread.
        windows: Tokens of each window of the text.
        decode: Whether they are read token by token as well.
        folder: Where candidates are written, one after the other.
        write: Writes the bundle of a candidate into a folder.
        progress: Told of every candidate.
    """

    reference: Reference
    windows: list[list[int]]
    decode: bool
    folder: Path
    write: Callable[[Sequence[Slot], Path], None]
    progress: Progress

    def score(self, slots: Sequence[Slot]) -> dict[str, float]:
        """Quality of a candidate; see `tamiz.evaluation.evaluate`.

        Raises:
            RuntimeError: It does not run.
        """
        from tamiz.evaluation.evaluate import compare
        from tamiz.runtime.model import Model

        def report(done: int) -> None:
            self.progress("score a candidate", done, len(self.windows))

        report(0)
        shutil.rmtree(self.folder, ignore_errors=True)
        with naming(self.folder):
            self.folder.mkdir(parents=True)
            self.write(slots, self.folder)
        try:
            candidate = Model.load(self.folder, threads=1)
        except TamizError as error:
            raise RuntimeError(f"the built model does not run: {error}") from error
        result = compare(candidate, self.reference, self.windows, self.decode, cores(), report)
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
        if result.built.ppl_decode is not None and result.kl_decode is not None:
            measured |= {
                "ppl_decode": result.built.ppl_decode,
                "ppl_decode_dense": result.dense.ppl_from_16,
                "kl_decode": result.kl_decode,
            }
        return measured


def decodes(slots: Sequence[Slot]) -> bool:
    """Whether an applied technique acts on single-token steps only."""
    return any(slot.accepted and slot.accepted.choice.technique.decode_only for slot in slots)


def gate_windows(
    reference: Model, known: Calibration | None, long: bool, progress: Progress
) -> list[list[int]]:
    """The text that candidates are scored on.

    Args:
        reference: The dense model.
        known: The calibration; without one the dense model writes the text.
        long: Whether windows are joined to 1,024 tokens, twice as many of them.
        progress: Told of the text that is written.
    """
    from tamiz.calibration.generated_text import generate_windows
    from tamiz.runtime.model import Model

    if known is not None and known.tokens:
        windows = (known.judging or known.tokens)[: 2 * _WINDOWS if long else _WINDOWS]
    else:
        written = generate_windows(
            Model.load(reference.bundle.path),
            _GENERATED_WINDOWS,
            min(WINDOW, reference.limit),
            lambda done, total: progress("write a text", done, total),
        )
        windows = [list(window.tokens) for window in written]
    return _joined(windows, reference.limit) if long else windows


def judging_windows(known: Calibration, limit: int) -> list[list[int]]:
    """Windows that nothing was fitted to, joined to 1,024 tokens where the model has them.

    Raises:
        TamizError: The calibration keeps no such window.
    """
    windows = known.judging
    if not windows:
        raise TamizError(
            f"the calibration keeps {len(known.tokens)} windows of {WINDOW} tokens, expected at "
            "least 2: one predicts losses, the others judge"
        )
    return _joined(windows, limit)[:_WINDOWS]


def _joined(windows: list[list[int]], limit: int) -> list[list[int]]:
    """Two windows that follow each other as one, where there are two and the model has room."""
    if len(windows) > 1 and 2 * len(windows[0]) <= limit:
        return [a + b for a, b in zip(windows[::2], windows[1::2], strict=False)]
    return windows
