"""One sequence of a model: its tokens, and what the model keeps of them.

Beside keys and values a graph may keep other state, with a row a token (sketches of keys) or of
fixed size; a sequence carries it along without knowing what it is. `tamiz.runtime.kv_cache` has the
two ways in which a graph can keep it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tamiz.files.errors import TamizError
from tamiz.interface.states import SPARE, State

#: Tokens of a prompt in one forward pass: enough for a GEMM, little in activations.
CHUNK = 512
#: Rows of logits that a sequence has a buffer for: runs that verify guesses are not longer.
ROWS = 32

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Decoder:
    """What a sequence needs of a loaded model.

    Attributes:
        path: The bundle, for messages.
        session: Its session.
        states: What the graph keeps of a sequence.
        vocabulary: Number of logits.
        limit: Tokens that a sequence can have.
        has_positions: Whether the graph takes position_ids.
        can_keep: Whether it takes logits_to_keep.
        switches: Techniques that a run can do without.
        without: Those that a new sequence does without.
    """

    path: Path
    session: ort.InferenceSession
    states: Ids[State]
    vocabulary: int
    limit: int
    has_positions: bool
    can_keep: bool
    switches: Ids[str] = ()
    without: Collection[str] = ()


class _Kept(NamedTuple):
    """A copy of the state of fixed size, after `length` tokens."""

    length: int
    furthest: int
    fixed: list[NDArray[Any]]


class Sequence(ABC):
    """One sequence: its tokens, and the keys and values that the model keeps of them.

    Attributes:
        tokens: What has been read so far.
    """

    def __init__(self, decoder: Decoder) -> None:
        """Starts empty."""
        self.tokens: list[int] = []
        self._decoder = decoder
        self._fixed = [n for n, state in enumerate(decoder.states) if state.axis is None]
        self._all_recent = all(decoder.states[n].recent for n in self._fixed)
        self._furthest = 0  # tokens that the rows of the last ones have reached
        self._kept: _Kept | None = None
        self._switches = {name: np.zeros(1, np.int64) for name in decoder.switches}
        for name in decoder.without:
            self._switches[name][0] = 1

    @property
    def room(self) -> int:
        """Tokens that still fit in the model's limit."""
        return self._decoder.limit - len(self.tokens)

    @property
    def spare(self) -> int:
        """Tokens that `truncate` can forget of a state that has the rows of the last tokens."""
        recent = any(state.recent for state in self._decoder.states)
        return SPARE if recent else self._decoder.limit

    def read(self, ids: Ids[int]) -> Logits:
        """Runs at least one token, in chunks.

        Returns:
            The logits ``[V]`` of the token that follows; valid until the next call.

        Raises:
            TamizError: The tokens do not fit in the model's limit, or one is unknown to it.
        """
        check_tokens(ids, self._decoder.vocabulary)
        self._reserve(len(ids))
        start = 0
        while start < len(ids):
            # A last part of one token would be a decode step, not a part of the prompt.
            end = start + CHUNK + (start + CHUNK + 1 == len(ids))
            part, start = ids[start:end], end
            logits = self._run(np.array([part], np.int64), every=False)
            self.tokens += part
        last: Logits = logits[-1]
        return last

    def step(self, token: int) -> Logits:
        """Runs one token; returns the logits ``[V]`` of the next, valid until the next call."""
        check_tokens((token,), self._decoder.vocabulary)
        self._reserve(1)
        logits = self._step(token)
        self.tokens.append(token)
        return logits

    def logits(self, ids: Ids[int]) -> Logits:
        """Runs tokens in one forward pass.

        Returns:
            The logits after each, ``[len(ids), V]``; valid until the next call.
        """
        check_tokens(ids, self._decoder.vocabulary)
        self._reserve(len(ids))
        logits = self._run(np.array([ids], np.int64), every=True)
        self.tokens += ids
        return logits

    def keep(self, tokens: int | None = None) -> None:
        """Copies the state of fixed size, so that `truncate` can return to this length.

        Args:
            tokens: How many are read before it returns; None where it is not known. A state that
                has the rows of the last tokens needs no copy for few.
        """
        length = len(self.tokens)
        reached = None if tokens is None else max(self._reached, length + tokens)
        few = self._all_recent and reached is not None and reached - length <= self.spare
        if self._fixed and not few:
            fixed = [self._state(n).copy() for n in self._fixed]
            self._kept = _Kept(length, self._reached, fixed)

    def take(self, other: Sequence) -> None:
        """Replaces the tokens and their state by those of another sequence of the model."""
        self.truncate(0)
        self._reserve(len(other.tokens))
        self.tokens, self._kept = list(other.tokens), None
        self._furthest = other._reached
        self._take(other)

    def truncate(self, length: int, unread: bool = False) -> None:
        """Forgets all tokens after the first `length`.

        State of fixed size cannot be shortened, or by `spare` tokens from the furthest that it has
        reached, where it has the rows of the last ones. A sequence that has such state returns to
        where `keep` was called last, if that is not beyond `length`, and is emptied otherwise.

        Args:
            length: Tokens that stay.
            unread: State of fixed size that has no rows of tokens stays as it is, as it belongs
                to techniques that are switched off in the runs that count.
        """
        if length >= len(self.tokens):
            return
        fixed: list[NDArray[Any]] = []
        self._furthest = self._reached
        few = self._furthest - length <= self.spare
        if few and (unread or self._all_recent):
            if self._kept is not None and self._kept.length > length:
                self._kept = None
        elif self._kept is not None and self._kept.length <= length:
            length, self._furthest, fixed = self._kept
        elif self._fixed:
            self._kept, length, self._furthest = None, 0, 0
            fixed = [np.zeros_like(self._state(n)) for n in self._fixed]
        del self.tokens[length:]
        self._cut(fixed)

    @property
    def _reached(self) -> int:
        return max(self._furthest, len(self.tokens))

    def keep_prefix(self, prompt: Ids[int]) -> int:
        """Forgets all but the tokens that the sequence shares with the beginning of a prompt.

        The last token of the prompt is never kept, since the logits after it are needed.

        Returns:
            Number of tokens kept; see `truncate` for why they may be fewer than are shared.
        """
        shared = 0
        for old, new in zip(self.tokens, prompt[:-1], strict=False):
            if old != new:
                break
            shared += 1
        self.truncate(shared)
        return len(self.tokens)

    def switch_off(self, techniques: Collection[str]) -> None:
        """Lets the runs that follow do without `techniques`, and with all others.

        A run keeps the state of a technique that it does without: sketches of keys, for one.

        Raises:
            KeyError: A run cannot do without one of them, see `Model.switches`.
        """
        for name in techniques:
            self._switches[name]
        for name, off in self._switches.items():
            off[0] = name in techniques

    def _reserve(self, count: int) -> None:
        """Makes sure that `count` more tokens fit."""
        if count > self.room:
            raise TamizError(
                f"a sequence of {len(self.tokens) + count} tokens does not fit: the model's limit"
                f" is {self._decoder.limit} tokens (max_position_embeddings of config.json)"
            )

    @abstractmethod
    def _state(self, index: int) -> NDArray[Any]:
        """The state of that index of the decoder's states, as it is now."""

    @abstractmethod
    def _take(self, other: Sequence) -> None:
        """Copies the state of a sequence of as many tokens, for which there is room."""

    @abstractmethod
    def _cut(self, fixed: Ids[NDArray[Any]]) -> None:
        """Fits the state to the tokens, of which some have been forgotten.

        Args:
            fixed: New values of the states of fixed size, in their order; none where they stay.
        """

    @abstractmethod
    def _run(self, ids: NDArray[np.int64], every: bool) -> Logits:
        """Reads ``[1, S]`` tokens; returns the logits of every position, or at least the last."""

    @abstractmethod
    def _step(self, token: int) -> Logits:
        """Runs one token; returns ``[V]``."""


def check_tokens(ids: Ids[int], vocabulary: int) -> None:
    """Refuses tokens that the model does not know."""
    for token in ids:
        if not 0 <= token < vocabulary:
            raise TamizError(
                f"token {token} is unknown to the model, which knows 0 to {vocabulary - 1}; its"
                " tokenizer.json may be another model's"
            )
