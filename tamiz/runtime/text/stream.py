"""Text in, text out: tokenizer, model and stop strings together."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass

from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model, Observer
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.sequence import Sequence
from tamiz.runtime.speculation.settings import Speculation
from tamiz.runtime.speculation.statistics import SpeculationStatistics
from tamiz.runtime.text.tokenizer import Tokenizer


@dataclass
class Speed:
    """How long an answer took; complete when the answer is.

    Attributes:
        tokens: Tokens generated.
        prompt_seconds: From the start to the first token: the prompt is run, one token is drawn.
        decode_seconds: From the first token to the last.
    """

    tokens: int = 0
    prompt_seconds: float = 0.0
    decode_seconds: float = 0.0

    @property
    def decode_tok_s(self) -> float | None:
        """Tokens per second after the first token; None for an answer of fewer than two."""
        if self.tokens < 2 or self.decode_seconds <= 0:
            return None
        return (self.tokens - 1) / self.decode_seconds

    def follow(self, ids: Iterator[int]) -> Iterator[int]:
        """Passes tokens on, and counts and times them."""
        start = time.perf_counter()
        for token in ids:
            seconds = time.perf_counter() - start
            if self.tokens == 0:
                self.prompt_seconds = seconds
            self.tokens += 1
            self.decode_seconds = seconds - self.prompt_seconds
            yield token


def generate_text(
    model: Model,
    tokenizer: Tokenizer,
    prompt: Items[int],
    sampling: Sampling,
    max_new_tokens: int | None = None,
    stop: Items[str] = (),
    sequence: Sequence | None = None,
    speed: Speed | None = None,
    speculation: Speculation | None = None,
    statistics: SpeculationStatistics | None = None,
    observe: Observer | None = None,
) -> Iterator[str]:
    """Yields the text that follows a prompt, in pieces, up to and without a stop string.

    Args:
        model: The model; its stop tokens end the text as well.
        tokenizer: Its tokenizer.
        prompt: Token ids.
        sampling: How tokens are drawn.
        max_new_tokens: See `Model.generate`.
        stop: Strings that end the text; in them, names of control tokens are these tokens, too.
        sequence: See `Model.generate`.
        speed: Gets the number of tokens and the seconds that they took.
        speculation: See `Model.generate`.
        statistics: See `Model.generate`.
        observe: See `Model.generate`.

    Raises:
        TamizError: A stop string is empty, or see `Model.generate`.
    """
    if "" in stop:
        raise TamizError("a stop string is empty, expected at least one character")
    ids = model.generate(
        prompt, sampling, max_new_tokens, sequence, speculation, statistics, observe
    )
    if speed is not None:
        ids = speed.follow(ids)
    strings = StopStrings(model.stop_strings(stop, sampling), tokenizer.controls.values())
    yield from until_stop(tokenizer_pieces(tokenizer, ids), strings)


def tokenizer_pieces(tokenizer: Tokenizer, ids: Iterator[int]) -> Iterator[tuple[str, str]]:
    """The text of tokens as they come, and the name of the control token that each is, or ''."""
    stream = tokenizer.stream()
    for token in ids:
        yield stream.push(token), tokenizer.controls.get(token, "")
    yield stream.end(), ""


def until_stop(pieces: Iterable[tuple[str, str]], strings: StopStrings) -> Iterator[str]:
    """Passes pieces of text on up to the first stop string; see `StopStrings.push`."""
    for piece, control in pieces:
        text, stopped = strings.push(piece, control)
        if text:
            yield text
        if stopped:
            return
    if rest := strings.end():
        yield rest


class StopStrings:
    """Finds the first stop string in text that comes in pieces.

    Text that may be the beginning of a stop string is held back until that is decided. Control
    tokens are not shown; where a stop string has their names, it is found in the text with them.
    """

    def __init__(self, stop: Items[str], controls: Iterable[str] = ()) -> None:
        """Starts a text that any of `stop` ends.

        Args:
            stop: The strings.
            controls: Names of control tokens.
        """
        self._stop = stop
        named = [
            name for name in sorted(controls, key=len, reverse=True) if name in "\n".join(stop)
        ]
        #: Half characters, which no text has, stand for control tokens.
        self._symbols = {name: chr(0xD800 + place) for place, name in enumerate(named)}
        self._with_controls = list(stop)
        for name, symbol in self._symbols.items():
            self._with_controls = [text.replace(name, symbol) for text in self._with_controls]
        self._held = ""

    def push(self, piece: str, control: str = "") -> tuple[str, bool]:
        """Adds text.

        Args:
            piece: The text.
            control: Name of a control token that comes after it.

        Returns:
            The text that is no beginning of a stop string, and whether it ended at one.
        """
        self._held += piece + (self._symbols.get(control, _OTHER) if control else "")
        everything, shown = range(len(self._held)), self._shown()
        ends, safe = [], len(self._held)
        for places, stop in ((everything, self._with_controls), (shown, self._stop)):
            text = "".join(self._held[place] for place in places)
            ends += [places[text.find(string)] for string in stop if string in text]
            if begun := possible_beginning(text, stop):
                safe = min(safe, places[-begun])
        cut = min(ends, default=safe)
        text = "".join(self._held[place] for place in shown if place < cut)
        self._held = self._held[cut:]
        return text, bool(ends)

    def end(self) -> str:
        """What was held back, as no more text comes."""
        text = "".join(self._held[place] for place in self._shown())
        self._held = ""
        return text

    def _shown(self) -> Items[int]:
        return [place for place, letter in enumerate(self._held) if not _FIRST <= letter <= _OTHER]


#: The half characters; the last one is any control token that no stop string names.
_FIRST, _OTHER = "\ud800", "\udfff"


def possible_beginning(text: str, stop: Items[str]) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    longest = max((len(string) - 1 for string in stop), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(string.startswith(text[-length:]) for string in stop):
            return length
    return 0
