"""The engine: one thread that owns a batch and makes the answers of all requests.

Each turn it takes new jobs, drops those that nobody waits for, admits what fits, and runs the
model once for all. A job that was admitted may lose its pages to older jobs when memory is short;
it then waits, and goes on later with the same tokens: what was read of it is read again, or found
in the cache. As the logits of a sequence do not depend on its neighbours nor on how its tokens are
divided into runs, an answer has the same bits however busy the engine is.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from tamiz.files.errors import TamizError
from tamiz.interface.states import PAGE
from tamiz.runtime.batching.batch import Batch
from tamiz.runtime.batching.member import Member
from tamiz.runtime.batching.page_files import FilesOfPages
from tamiz.runtime.model import Model
from tamiz.runtime.sequence import check_tokens
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving.answer import Answer
from tamiz.serving.drafts import MOST, Drafts
from tamiz.serving.recalled import Pasts
from tamiz.serving.requests import Failure, Job


class OverloadedError(Exception):
    """The queue is full; try again later."""


@dataclass(frozen=True)
class Limits:
    """Bounds of an engine.

    Attributes:
        cache_tokens: Tokens that the KV cache holds, of running answers and kept prefixes.
        concurrent: Answers that run at once.
        queue: Jobs that may wait; more are refused.
        slowdown: See `tamiz.runtime.batching.batch.Batch`.
        drafts: Guessed tokens that a run verifies, of all answers, 0 to `MOST`.
        files: Where kept prefixes outlive the server; None for memory only.
    """

    cache_tokens: int
    concurrent: int = 16
    queue: int = 256
    slowdown: float = 1.45
    drafts: int = MOST
    files: FilesOfPages | None = None


@dataclass
class Load:
    """What an engine has to do, as numbers that other threads may read."""

    running: int = 0
    waiting: int = 0
    free_tokens: int = 0
    preempted: int = 0
    runs: int = 0
    drafted: int = 0
    accepted: int = 0


class Engine:
    """Makes answers in a thread of its own.

    Attributes:
        load: What it has to do now.
        limits: Its bounds.
    """

    def __init__(self, model: Model, tokenizer: Tokenizer, limits: Limits) -> None:
        """Allocates the cache and starts the thread.

        Raises:
            TamizError: The bundle does not run with several sequences.
        """
        self.limits = limits
        self.load = Load()
        self._model, self._tokenizer = model, tokenizer
        self._batch = Batch(model, limits.cache_tokens, limits.slowdown, True, limits.files)
        self._drafts, self._pasts = Drafts(limits.drafts), Pasts()
        self._most = min(model.limit, self._batch.tokens)
        self._changed = threading.Condition()
        self._arrived: deque[Answer] = deque()
        self._open = True
        self._waiting: deque[Answer] = deque()
        self._running: list[Answer] = []  # oldest first
        self._thread = threading.Thread(target=self._loop, name="tamiz-engine", daemon=True)
        self._thread.start()

    @property
    def most_tokens(self) -> int:
        """Tokens that a prompt and its answer can have together."""
        return self._most

    def submit(self, job: Job) -> None:
        """Queues a job; its events are delivered from the engine's thread.

        Raises:
            TamizError: The prompt is empty, does not fit, or has a token that the model does not
                know.
            OverloadedError: Too many jobs wait, or the engine closes.
        """
        if not 0 < len(job.prompt) < self._most:
            raise TamizError(
                f"the prompt has {len(job.prompt)} tokens, expected 1 to {self._most - 1}: the"
                " context holds the prompt and at least one token of the answer"
            )
        check_tokens(job.prompt, self._model.vocabulary)
        with self._changed:
            past = self._pasts.of(job.scope)
        answer = Answer(job, self._model, self._tokenizer, past)
        with self._changed:
            if not self._open:
                raise OverloadedError("the server is shutting down")
            if len(self._arrived) + self.load.waiting >= self.limits.queue:
                raise OverloadedError(f"{self.limits.queue} requests wait already")
            self._arrived.append(answer)
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Stops the answer to a job; its pages are free after the run that goes on."""
        job.cancelled = True
        with self._changed:
            self._changed.notify()

    def close(self, seconds: float = 0.0) -> None:
        """Takes no more jobs, and waits at most so long for the answers that are being made."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join(seconds)
        for answer in [*self._running, *self._waiting]:
            answer.job.cancelled = True
        self._thread.join()
        self._batch.close()

    def _loop(self) -> None:
        while self._receive():
            try:
                self._turn()
            except Exception as error:  # whatever happens, nobody is left waiting
                for answer in [*self._running, *self._waiting]:
                    self._fail(answer, 500, f"the engine failed: {error}")
                self._sweep()
            self._measure()

    def _receive(self) -> bool:
        """Takes what arrived; waits where there is nothing to do. False at the end."""
        with self._changed:
            while self._open and not (self._arrived or self._running or self._waiting):
                self._changed.wait()
            self._waiting += self._arrived
            self._arrived.clear()
            self.load.waiting = len(self._waiting)
            return self._open or bool(self._running or self._waiting)

    def _turn(self) -> None:
        """One run of the model for all answers."""
        self._sweep()
        self._admit()
        self._make_room()
        stepping = self._propose()
        drafts = {id(answer): answer.member.drafts for answer in stepping if answer.member}
        start = time.perf_counter()
        ready = self._batch.run()
        if stepping and len(stepping) == len(self._running):
            count = sum(map(len, drafts.values()))
            self._drafts.measured(len(stepping), count, time.perf_counter() - start)
        running = {answer.member: answer for answer in self._running}
        for member in ready:
            answer = running[member]
            self._advance(answer, member, drafts.get(id(answer), []))
        self.load.runs += 1

    def _propose(self) -> list[Answer]:
        """Gives drafts to answers that step; returns the answers."""
        stepping = [a for a in self._running if a.member and len(a.member.unread) == 1]
        drafts = self._drafts.choose([answer.guesses for answer in stepping])
        for answer, guessed in zip(stepping, drafts, strict=True):
            assert answer.member is not None
            answer.member.propose(guessed)
        if self._batch.lacking > 0:  # pages are for answers, not for guesses
            for answer in stepping:
                assert answer.member is not None
                answer.member.propose([])
        return stepping

    def _advance(self, answer: Answer, member: Member, drafts: list[int]) -> None:
        """Takes what a run gave to an answer."""
        assert member.rows is not None
        try:
            right, following = answer.advance(member.rows, drafts)
        except TamizError as error:
            self._fail(answer, 400, str(error))
            right, following = 0, []
        member.accept(right)
        self.load.drafted += len(drafts)
        self.load.accepted += right
        for token in following:
            member.append(token)
        if not following:
            answer.remember()
            self._leave(answer)

    def _sweep(self) -> None:
        """Drops answers that nobody waits for, and those that came too late."""
        now = time.monotonic()
        for answer in [*self._running, *self._waiting]:
            deadline = answer.job.deadline
            if deadline is not None and now > deadline and not answer.job.cancelled:
                self._fail(answer, 408, "the answer was not complete within its time limit")
            if answer.job.cancelled:
                self._leave(answer)

    def _fail(self, answer: Answer, status: int, message: str) -> None:
        answer.job.deliver(Failure(status, message))
        answer.job.cancelled = True

    def _leave(self, answer: Answer) -> None:
        """Takes an answer out of the batch or of the queue."""
        if answer.member is None:
            if answer in self._waiting:
                self._waiting.remove(answer)
            return
        self._running.remove(answer)
        self._batch.remove(answer.member)
        answer.member = None

    def _admit(self) -> None:
        """Lets waiting answers join in their order, while there is room for what they read."""
        while self._waiting and len(self._running) < self.limits.concurrent:
            answer = self._waiting[0]
            # A page more for each that runs, so that none has to leave at once.
            needed = len(answer.text) + PAGE * (1 + len(self._running))
            if self._running and needed > self._batch.free:
                return
            room = min(answer.room, self._most)
            scope, answered = answer.job.scope, len(answer.tokens)
            member = self._batch.add(answer.text, room, False, scope, answered)
            self._waiting.popleft()
            if answer.cached is None:
                answer.cached = member.cached
            answer.member = member
            self._running.append(answer)

    def _make_room(self) -> None:
        """Lets the youngest answers wait until the pages suffice for the others."""
        while self._batch.lacking > 0 and len(self._running) > 1:
            answer = self._running[-1]
            self._leave(answer)
            self._waiting.appendleft(answer)
            self.load.preempted += 1

    def _measure(self) -> None:
        self.load.running = len(self._running)
        self.load.waiting = len(self._waiting)
        self.load.free_tokens = self._batch.free
