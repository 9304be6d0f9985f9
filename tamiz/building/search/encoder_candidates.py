"""Candidates of an encoder's build, run in onnxruntime: how close their embeddings are to dense.

Texts are pieces of the calibration's windows, between the tokens that begin and end a text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tamiz.building.fit.selection import Slot
from tamiz.building.search.candidates import load_candidate
from tamiz.files.bundle import Bundle
from tamiz.reporting.gate import Trial, WholeModelGate
from tamiz.system.cores import cores
from tamiz.system.progress import Progress

if TYPE_CHECKING:
    from tamiz.runtime.embedding.encoder import Encoder

#: Tokens of a text.
_LENGTH = 128


def texts_of(windows: Sequence[list[int]], bundle: Bundle) -> NDArray[np.int64]:
    """Texts ``[texts, tokens]`` of one length.

    Args:
        windows: Tokens of a calibration's windows.
        bundle: The encoder, whose tokenizer says how a text begins and ends.
    """
    from tamiz.evaluation.windows import cut
    from tamiz.runtime.text.tokenizer import Tokenizer

    first, last = Tokenizer(bundle).ends()
    inner = min(_LENGTH, len(windows[0])) - len(first) - len(last)
    pieces = (piece for window in windows for piece in cut(window, len(window) // inner, inner))
    return np.array([[*first, *piece, *last] for piece in pieces], np.int64)


@dataclass(frozen=True)
class EncoderCandidates:
    """How candidates are made and scored.

    Attributes:
        dense: The dense model, of one thread.
        windows: Tokens of the windows whose texts are read.
        folder: Where candidates are written, one after the other.
        write: Writes the bundle of a candidate into a folder.
        progress: Told of every candidate.
    """

    dense: Encoder
    windows: Sequence[list[int]]
    folder: Path
    write: Callable[[Sequence[Slot], Path], None]
    progress: Progress

    @cached_property
    def texts(self) -> NDArray[np.int64]:
        """The texts that are read."""
        return texts_of(self.windows, self.dense.bundle)

    @cached_property
    def _expected(self) -> NDArray[np.float32]:
        from tamiz.evaluation.embeddings import read

        return read(self.dense.embeddings, self.texts, cores())

    def score(self, slots: Sequence[Slot]) -> dict[str, float]:
        """``cosine`` of a candidate, its mean over texts, and its standard error.

        Raises:
            RuntimeError: It does not run.
        """
        from tamiz.evaluation.embeddings import cosines, read
        from tamiz.runtime.embedding.encoder import Encoder

        def report(done: int) -> None:
            self.progress("score a candidate", done, len(self.texts))

        report(0)
        candidate = load_candidate(slots, self.folder, self.write)
        assert isinstance(candidate, Encoder)
        found = cosines(self._expected, read(candidate.embeddings, self.texts, cores(), report))
        quality = {"cosine": float(found.mean())}
        if len(found) > 1:
            quality["cosine_error"] = float(found.std(ddof=1) / len(found) ** 0.5)
        return quality

    def gate(
        self, trials: list[Trial], built: int | None, min_cosine: float | None
    ) -> WholeModelGate:
        """What the report says of the gate that these candidates were scored for."""
        return WholeModelGate(
            max_dppl=None,
            min_cosine=min_cosine,
            text="calibration",
            windows=self.texts.shape[0],
            window_tokens=self.texts.shape[1],
            trials=trials,
            built=built,
        )
