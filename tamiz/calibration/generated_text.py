"""Calibration text that a model writes itself, so that no data set is needed.

Half of the windows continue openings of texts of many kinds, from an encyclopedia to code, a few in
each window (``tamiz/data/openings.json``). A model left alone writes what it has read most often,
which for a model of code has little of other texts. A quarter are chats: the model writes the
user's messages as well, after what its chat template puts before them (Magpie, arXiv 2406.08464).
A quarter begin with a token drawn uniformly (LLM-QAT, arXiv 2305.17888). All tokens are drawn from
the model. All windows are written side by side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluation.windows import Window
from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling, distribution
from tamiz.runtime.text.chat_template import ChatTemplate
from tamiz.runtime.text.tokenizer import Tokenizer

PROSE, CHAT, OPENED = "written prose", "written chat", "written on openings"

#: Beginnings of texts of many kinds, written for this package.
OPENINGS = Path(__file__).parents[1] / "data" / "openings.json"

_SEED = 0
#: Any token may be drawn: among the likeliest only, small models soon repeat themselves.
_SAMPLING = Sampling(temperature=1.0, seed=_SEED)
#: Time that chat templates write: equal builds have equal bytes on any day.
_NOW = datetime(2025, 1, 1)
#: Stands for a message in a rendered template.
_MESSAGE = "tamiz-message"
#: The windows' kinds, by turns; the first four windows of a calibration predict losses.
_KINDS = (OPENED, CHAT, OPENED, PROSE)
#: Tokens after which a window goes on with its next opening, and most tokens of an opening. Few, as
#: a model comes back to what it has read most often, whatever it continues.
_PASSAGE, _OPENING = 100, 60


@dataclass(frozen=True)
class Turns:
    """What a chat template puts around messages, in tokens.

    Attributes:
        start: Before the first message of the user.
        reply: Between the stop token of the user's message and the assistant's.
        again: Between the stop token of the assistant's message and the user's next.
    """

    start: list[int]
    reply: list[int]
    again: list[int]


def find_turns(model: Model) -> Turns | None:
    """The turns of a model's chats.

    Returns:
        None if the model has no chat template. Also where the template marks no start of the user's
        message, or ends a message without a stop token.
    """
    tokenizer = Tokenizer(model.bundle)
    try:
        template = ChatTemplate(tokenizer.settings, _NOW)
        talk = [{"role": role, "content": _MESSAGE} for role in ("user", "assistant", "user")]
        parts = template.render(talk).split(_MESSAGE)
    except TamizError:
        return None
    if len(parts) != len(talk) + 1:
        return None
    start, reply, again, _ = (
        tokenizer.encode(part, bos=False, control_tokens=True) for part in parts
    )
    after = [_after_stop(ids, model.stop_ids) for ids in (reply, again)]
    if not start or after[0] is None or after[1] is None:
        return None
    return Turns(start, after[0], after[1])


def _after_stop(ids: list[int], stop_ids: frozenset[int]) -> list[int] | None:
    """What follows the first stop token; None if there is none."""
    ends = [index for index, token in enumerate(ids) if token in stop_ids]
    return ids[ends[0] + 1 :] if ends else None


@dataclass
class _Writer:
    """One window that is being written.

    Attributes:
        origin: The window's kind.
        ahead: Tokens that come before the next one that is drawn.
    """

    origin: str
    ahead: list[int]

    def next(self, logits: NDArray[np.float32], random: np.random.Generator) -> int:
        """The token that follows."""
        if not self.ahead:
            token = _draw(logits, random)
            self.ahead = self.after(token)
            return token
        return self.ahead.pop(0)

    def after(self, token: int) -> list[int]:
        """What follows a token that was drawn; nothing where the next one is drawn as well."""
        return []


@dataclass
class _Chat(_Writer):
    """A chat.

    Attributes:
        turns: What is around messages.
        stop_ids: Tokens that end a message.
        user: Whether the user speaks.
    """

    turns: Turns
    stop_ids: frozenset[int]
    user: bool = True

    def after(self, token: int) -> list[int]:
        """The turn that follows the end of a message."""
        if token not in self.stop_ids:
            return []
        self.user = not self.user
        return list(self.turns.again if self.user else self.turns.reply)


@dataclass
class _Passages(_Writer):
    """Openings and what the model writes after each, until it stops or has written enough.

    Attributes:
        openings: Those that follow the first, without end.
        stop_ids: Tokens that end a text.
        left: Tokens to draw before the next opening.
    """

    openings: Iterator[list[int]]
    stop_ids: frozenset[int]
    left: int = 0

    def __post_init__(self) -> None:
        """Counts the first opening."""
        self.left = _PASSAGE - len(self.ahead)

    def after(self, token: int) -> list[int]:
        """The next opening where a passage ends."""
        self.left -= 1
        if self.left > 0 and token not in self.stop_ids:
            return []
        opening = list(next(self.openings))
        self.left = _PASSAGE - len(opening)
        return opening


def _openings(tokenizer: Tokenizer) -> list[list[int]]:
    """The openings, in tokens; those of which the tokenizer lacks a character are left out."""
    openings = []
    for opening in json.loads(OPENINGS.read_text("utf-8")):
        with suppress(TamizError):
            openings.append(tokenizer.encode("\n\n" + opening["text"], bos=False)[:_OPENING])
    return openings


def _writers(model: Model, windows: int, random: np.random.Generator) -> list[_Writer]:
    """A writer for each window, with the tokens that it begins with.

    No two of the windows have an opening in common, unless there are more windows than openings.
    """
    tokenizer, turns = Tokenizer(model.bundle), find_turns(model)
    openings = _openings(tokenizer)
    kinds = [_KINDS[number % len(_KINDS)] for number in range(windows)]
    if turns is None:
        kinds = [OPENED if kind == CHAT else kind for kind in kinds]
    if not openings:
        kinds = [PROSE if kind == OPENED else kind for kind in kinds]
    writers: list[_Writer] = []
    for kind, token in zip(kinds, random.integers(0, model.vocabulary, windows), strict=True):
        if kind == CHAT and turns is not None:
            writers.append(_Chat(kind, list(turns.start), turns, model.stop_ids))
        elif kind == OPENED:
            first = sum(writer.origin == OPENED for writer in writers) % len(openings)
            mine = cycle(openings[first :: kinds.count(OPENED)])
            start = tokenizer.encode("") + next(mine)
            writers.append(_Passages(kind, start, mine, model.stop_ids))
        else:
            writers.append(_Writer(kind, [int(token)]))
    return writers


def generate_windows(
    model: Model,
    windows: int,
    length: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Window]:
    """Windows of text that the model generates, of all kinds by turns; deterministic.

    Args:
        model: The dense model.
        windows: Number of windows.
        length: Tokens per window.
        progress: Takes the tokens generated per window so far, and `length`.
    """
    random = np.random.default_rng(_SEED)
    writers = _writers(model, windows, random)
    ids = np.array([[writer.ahead.pop(0)] for writer in writers])
    cache = {state.past: state.zeros(windows) for state in model.states}
    rows = ids
    for written in range(1, length):
        progress(written, length)
        feeds = {
            **cache,
            "input_ids": ids,
            "attention_mask": np.ones((windows, written), np.int64),
        }
        if model.has_positions:
            feeds["position_ids"] = np.full((windows, 1), written - 1)
        names = [state.present for state in model.states]
        logits, *presents = model.session.run(["logits", *names], feeds)
        cache = dict(zip(cache, presents, strict=True))
        pairs = zip(writers, logits[:, -1], strict=True)
        ids = np.array([[writer.next(row, random)] for writer, row in pairs])
        rows = np.concatenate([rows, ids], axis=1)
    pairs = zip(writers, rows, strict=True)
    return [Window(writer.origin, row.tolist()) for writer, row in pairs]


def _draw(logits: NDArray[np.float32], random: np.random.Generator) -> int:
    tokens, probabilities = distribution(logits, _SAMPLING)
    drawn = int(np.searchsorted(np.cumsum(probabilities), random.random(), side="right"))
    return int(tokens[min(drawn, len(tokens) - 1)])
