"""Calibration text that a model writes itself, so that no data set is needed.

Half of the windows are prose: each begins with a token drawn uniformly and goes on with tokens
drawn from the model (LLM-QAT, arXiv 2305.17888). The other half are chats: the model writes the
user's messages as well, after what its chat template puts before them (Magpie, arXiv 2406.08464).
All windows are written side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluation.windows import Window
from tamiz.files.errors import TamizError
from tamiz.runtime.chat import ChatTemplate
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling, distribution
from tamiz.runtime.tokenizer import Tokenizer

PROSE, CHAT = "written prose", "written chat"

_SEED = 0
_SAMPLING = Sampling(temperature=1.0, top_k=64, seed=_SEED)
#: Stands for a message in a rendered template.
_MESSAGE = "tamiz-message"


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
    """The turns of a model's chats; None if it has no chat template whose turns end with a stop
    token, so that the end of the user's message is unmarked."""
    tokenizer = Tokenizer(model.bundle)
    try:
        template = ChatTemplate(tokenizer.settings)
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
    if after[0] is None or after[1] is None:
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
        turns: Of a chat; None for prose.
        stop_ids: Tokens that end a message.
        ahead: Tokens that come before the next one that is drawn.
        user: Whether the user speaks.
    """

    turns: Turns | None
    stop_ids: frozenset[int]
    ahead: list[int] = field(default_factory=list)
    user: bool = True

    def __post_init__(self) -> None:
        """Starts with the tokens before the first message."""
        if self.turns is not None:
            self.ahead = list(self.turns.start)

    def next(self, logits: NDArray[np.float32], random: np.random.Generator) -> int:
        """The token that follows."""
        if self.ahead:
            return self.ahead.pop(0)
        token = _draw(logits, random)
        if self.turns is not None and token in self.stop_ids:
            self.ahead = list(self.turns.reply if self.user else self.turns.again)
            self.user = not self.user
        return token


def generate_windows(
    model: Model,
    windows: int,
    length: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Window]:
    """Windows of text that the model generates, prose and chat alternately; deterministic.

    Args:
        model: The dense model.
        windows: Number of windows.
        length: Tokens per window.
        progress: Takes the tokens generated per window so far, and `length`.
    """
    random = np.random.default_rng(_SEED)
    turns = find_turns(model)
    writers = [_Writer(turns if i % 2 else None, model.stop_ids) for i in range(windows)]
    first = zip(writers, random.integers(0, model.vocabulary, windows), strict=True)
    ids = np.array([[writer.ahead.pop(0) if writer.ahead else token] for writer, token in first])
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
    origins = [CHAT if writer.turns else PROSE for writer in writers]
    return [Window(origin, row.tolist()) for origin, row in zip(origins, rows, strict=True)]


def _draw(logits: NDArray[np.float32], random: np.random.Generator) -> int:
    tokens, probabilities = distribution(logits, _SAMPLING)
    drawn = int(np.searchsorted(np.cumsum(probabilities), random.random(), side="right"))
    return int(tokens[min(drawn, len(tokens) - 1)])
