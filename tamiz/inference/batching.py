"""Answers to several prompts, in runs of the model that have tokens of all of them."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tamiz.files.errors import TamizError
from tamiz.inference.completion_stream import CompletionStream
from tamiz.inference.results import Completion, Usage
from tamiz.inference.settings import GenerationSettings
from tamiz.interface.states import PAGE
from tamiz.runtime.batching.batch import Batch
from tamiz.runtime.batching.batchable import check_batchable
from tamiz.runtime.batching.member import Member
from tamiz.runtime.logprobs import TokenLogprob, token_logprob
from tamiz.runtime.speculation.settings import Speculation
from tamiz.runtime.speculation.statistics import SpeculationStatistics
from tamiz.runtime.text.stream import Speed, StopStrings
from tamiz.system.memory import free_memory

if TYPE_CHECKING:
    from tamiz.runtime.model import Model
    from tamiz.runtime.sequence import Logits

#: Most answers at a time: more rows in a run cost as much as another run.
_TOGETHER = 16
#: Share of the free memory that the cache may take.
_SHARE = 0.5


def answer_together(
    model: Model, prompts: list[list[int]], settings: GenerationSettings, speculation: Speculation
) -> list[Completion]:
    """Answers prompts in shared runs; one after the other where the bundle does not allow it.

    Args:
        model: The model.
        prompts: Token ids of each.
        settings: How answers are generated; each is the one that it would be alone.
        speculation: How tokens are guessed where answers come one after the other.

    Raises:
        TamizError: A prompt is empty or does not fit in the context.
    """
    try:
        check_batchable(model)
    except TamizError:
        return [CompletionStream(model, ids, settings, speculation).complete() for ids in prompts]
    if not prompts:
        return []
    answers = [_Answer(model, ids, settings) for ids in prompts]
    batch = Batch(model, _tokens(model, [answer.room for answer in answers]), prefixes=True)
    waiting, running = deque(answers), dict[Member, _Answer]()
    while waiting or running:
        while waiting and (not running or waiting[0].room <= batch.free):
            if len(running) == _TOGETHER:
                break
            answer = waiting.popleft()
            running[answer.join(batch)] = answer
        for member in batch.run():
            assert member.logits is not None
            token = running[member].draw(member.logits)
            if token is None:
                batch.remove(member)
                del running[member]
            else:
                member.append(token)
    return [answer.result() for answer in answers]


def _tokens(model: Model, rooms: Sequence[int]) -> int:
    """Tokens to make room for: for all sequences, or for what memory is left, at least for one."""
    together = sum(sorted(rooms)[-_TOGETHER:])
    forms = ((state.paged(1), np.dtype(state.dtype)) for state in model.states)
    of_token = sum(math.prod(shape) * kind.itemsize for shape, kind in forms) / PAGE
    return max(*rooms, 1, int(min(together, _SHARE * free_memory() / of_token)))


class _Answer:
    """An answer that is being generated."""

    def __init__(self, model: Model, prompt: list[int], settings: GenerationSettings) -> None:
        """Starts without tokens."""
        self._model, self._prompt, self._settings = model, prompt, settings
        self._sampler = model.sampler(settings.sampling, prompt)
        self._stream = model.tokenizer.stream()
        stop = model.stop_strings(settings.stop, settings.sampling)
        self._stop = StopStrings(stop, model.tokenizer.controls.values())
        self._text, self._tokens, self._ended = "", list[int](), False
        self._logprobs: list[TokenLogprob] = []
        self._speed, self._start, self._cached = Speed(), 0.0, 0
        room = model.limit - len(prompt)
        longest = room if settings.max_new_tokens is None else min(room, settings.max_new_tokens)
        self._longest = longest
        #: Tokens of the sequence; a prompt that fills the context is refused by `Batch.add`.
        self.room = len(prompt) + max(1, longest)

    def join(self, batch: Batch) -> Member:
        """Joins a batch."""
        self._start = time.perf_counter()
        member = batch.add(self._prompt, self.room)
        self._cached = member.cached
        return member

    def draw(self, logits: Logits) -> int | None:
        """Draws the next token; None if the answer has ended."""
        token = self._sampler(logits)
        if token in self._model.stop_ids:
            self._ended = True
            self._finish()
            return None
        seconds = time.perf_counter() - self._start
        if not self._tokens:
            self._speed.prompt_seconds = seconds
        self._tokens.append(token)
        self._speed.tokens += 1
        self._speed.decode_seconds = seconds - self._speed.prompt_seconds
        if self._settings.logprobs is not None:
            self._logprobs.append(token_logprob(logits, token, self._settings.logprobs))
        control = self._model.tokenizer.controls.get(token, "")
        piece, self._ended = self._stop.push(self._stream.push(token), control)
        self._text += piece
        if not self._ended and len(self._tokens) < self._longest:
            return token
        if not self._ended:
            self._finish()
        return None

    def _finish(self) -> None:
        """Adds what was held back: an unfinished character, the beginning of a stop string."""
        piece, ended = self._stop.push(self._stream.end())
        self._text += piece + ("" if ended else self._stop.end())
        self._ended |= ended

    def result(self) -> Completion:
        """The answer."""
        return Completion(
            self._text,
            tuple(self._tokens),
            "stop" if self._ended else "length",
            Usage(len(self._prompt), self._cached, len(self._tokens)),
            self._speed,
            SpeculationStatistics(),
            None if self._settings.logprobs is None else tuple(self._logprobs),
        )
