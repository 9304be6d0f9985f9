"""Texts of a request in runs: those of similar length together, with a report of progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tamiz.files.errors import TamizError

#: Gets the texts that are done and their number in all.
Progress = Callable[[int, int], None]


@dataclass
class TextSpeed:
    """How long texts took, without tokenising.

    Attributes:
        texts: Texts that were run.
        tokens: Their tokens, without padding.
        seconds: Time of the runs.
    """

    texts: int = 0
    tokens: int = 0
    seconds: float = 0.0

    @property
    def texts_s(self) -> float | None:
        """Texts a second; None where nothing ran."""
        return self.texts / self.seconds if self.seconds else None

    @property
    def tokens_s(self) -> float | None:
        """Tokens a second; None where nothing ran."""
        return self.tokens / self.seconds if self.seconds else None


def in_batches(
    lengths: Sequence[int], size: int, progress: Progress | None, speed: TextSpeed
) -> Iterator[list[int]]:
    """Numbers of the texts of each run, short texts first; adds the time of the runs to `speed`.

    Args:
        lengths: Tokens of each text.
        size: Texts of a run.
        progress: Called after each run.
        speed: See above.

    Raises:
        TamizError: `size` is below 1.
    """
    if size < 1:
        raise TamizError(f"batch_size is {size}, expected at least 1")
    order = sorted(range(len(lengths)), key=lambda number: lengths[number])
    for start in range(0, len(order), size):
        chosen = order[start : start + size]
        begun = time.perf_counter()
        yield chosen
        speed.seconds += time.perf_counter() - begun
        speed.texts += len(chosen)
        speed.tokens += sum(lengths[number] for number in chosen)
        if progress is not None:
            progress(start + len(chosen), len(order))
