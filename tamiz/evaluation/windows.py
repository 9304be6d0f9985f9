"""Windows of a text: its tokens, cut into pieces of one length."""

from __future__ import annotations

import hashlib
import math
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tamiz.files.errors import TamizError
from tamiz.files.text_file import read_text

if TYPE_CHECKING:
    from tamiz.files.bundle import Bundle

#: Tokens of a window that is scored, and windows of a passage; see `spread`.
WINDOW, PASSAGE = 1024, 4


class Window(NamedTuple):
    """A piece of text.

    Attributes:
        origin: Name of the text that it is of.
        tokens: Its tokens.
        weight: How much it counts beside others, above 0.
    """

    origin: str
    tokens: Sequence[int]
    weight: float = 1.0


def window_hash(window: Sequence[int]) -> str:
    """SHA-256 of a window's tokens, 4 bytes each."""
    return hashlib.sha256(array("i", window).tobytes()).hexdigest()


def read_windows(path: Path, bundle: Bundle, windows: int, window: int = WINDOW) -> list[list[int]]:
    """The first windows of a text file, as the tokenizer of a bundle reads it.

    Args:
        path: The text.
        bundle: Has the tokenizer.
        windows: How many.
        window: Tokens of each.

    Raises:
        TamizError: The file cannot be read or tokenised, or is too short; names it.
    """
    from tamiz.runtime.text.tokenizer import Tokenizer

    text = read_text(path)
    try:
        return cut(Tokenizer(bundle).encode(text, bos=False), windows, window)
    except TamizError as error:
        raise TamizError(f"{path}: {error}") from error


def cut(ids: Sequence[int], windows: int, window: int = WINDOW) -> list[list[int]]:
    """The first windows of a tokenised text.

    Raises:
        TamizError: The text is too short.
    """
    if len(ids) < windows * window:
        raise TamizError(
            f"the text has {len(ids)} tokens, expected at least {windows * window}"
            f" ({windows} windows of {window})"
        )
    return [list(ids[start : start + window]) for start in range(0, windows * window, window)]


def spread(ids: Sequence[int], windows: int, window: int = WINDOW) -> list[list[int]]:
    """Windows from all over a tokenised text.

    They come in passages of `PASSAGE` windows that follow each other. However many passages one
    takes from the front, they lie about evenly over the text: the places of passages are in the
    order of frac(i / golden ratio), i = 0, 1, ...

    Raises:
        TamizError: The text is too short.
    """
    count, held = -(-windows // PASSAGE), len(ids) // window
    if held < count * PASSAGE:
        return cut(ids, windows, window)
    golden = (1 + math.sqrt(5)) / 2
    by_place = sorted(range(count), key=lambda passage: passage / golden % 1)
    starts = sorted(range(count), key=lambda place: by_place[place])
    firsts = [start * held // count for start in starts]
    places = [first + n for first in firsts for n in range(PASSAGE)][:windows]
    return [list(ids[place * window : (place + 1) * window]) for place in places]
