"""An answer that is being made: draws tokens, turns them into text, finds its end.

log p_i = l_i − log Σ_j exp(l_j)
"""

from __future__ import annotations

from functools import cached_property
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from tamiz.runtime.batching.member import Member
from tamiz.runtime.logprobs import TokenLogprob, token_logprob
from tamiz.runtime.model import Model
from tamiz.runtime.text.stream import StopStrings
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving.recalled import AGREE, Guesses, Past
from tamiz.serving.requests import End, Job, Piece

Logits = NDArray[np.float32]


class Answer:
    """The state of one answer; it outlives its place in the batch, which it may lose and get back.

    Attributes:
        job: What is requested.
        tokens: Tokens of the answer so far.
        member: Its place in the batch; None while it waits.
        cached: Tokens of the prompt that were read before it first joined.
    """

    def __init__(self, job: Job, model: Model, tokenizer: Tokenizer, past: Past) -> None:
        """Starts without tokens.

        Args:
            job: What is requested.
            model: The model.
            tokenizer: Its tokenizer.
            past: What the job's scope remembers of earlier answers.

        Raises:
            TamizError: `logit_bias` names a token that the model does not know.
        """
        self.job = job
        self.tokens: list[int] = []
        self.member: Member | None = None
        self.cached: int | None = None
        self._sampler = model.sampler(job.sampling, job.prompt)
        self._stream = tokenizer.stream()
        self._controls = tokenizer.controls
        stop = model.stop_strings(job.stop, job.sampling)
        self._stop = StopStrings(stop, tokenizer.controls.values())
        self._ends, self._past = model.stop_ids, past

    @property
    def text(self) -> list[int]:
        """The prompt and the tokens so far."""
        return self.job.prompt + self.tokens

    @property
    def room(self) -> int:
        """Tokens that its sequence can have."""
        return len(self.job.prompt) + self.job.max_tokens

    @cached_property
    def guesses(self) -> Guesses:
        """The text so far, and what may follow it."""
        return Guesses(self.text, self._past)

    def remember(self) -> None:
        """Lets later answers of its scope guess from this one."""
        begin = max(0, len(self.job.prompt) - AGREE)
        self._past.remember(self.text[begin:])

    def advance(self, rows: Logits, drafts: list[int]) -> tuple[int, list[int]]:
        """Draws the tokens that the rows of a run give.

        Args:
            rows: Logits ``[1 + drafts, V]`` after the last token and after each draft.
            drafts: The tokens that the run read ahead.

        Returns:
            How many drafts were right, and the tokens to read next: the last drawn one and those
            that the grammar forces; none where the answer has ended.
        """
        right = 0
        while following := self._draw(rows[right]):
            # A grammar may force several tokens, and drafts have guessed some of them.
            pairs = zip(following, drafts[right:], strict=False)
            agreed = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            right += agreed
            if agreed < len(following):
                return right, following[agreed:]
        return right, []

    def _draw(self, logits: Logits) -> list[int]:
        matcher = self.job.matcher
        allowed = logits if matcher is None else matcher.allow(logits)
        token = self._sampler(allowed)
        if token in self._ends:
            self._finish("stop")
            return []
        drawn = [token]
        if matcher is not None:
            matcher.consume(token)
            if self.job.top_logprobs is None:
                drawn += matcher.forced()
        del drawn[self.job.max_tokens - len(self.tokens) :]
        self._sampler.follow(drawn[1:])
        return self._add(drawn, logits)

    def _add(self, drawn: list[int], logits: Logits) -> list[int]:
        """Delivers tokens; returns those to read next, none where the answer has ended."""
        for token in drawn:
            self.guesses.add(token)
        self.tokens += drawn
        texts, stopped = list[str](), False
        for token in drawn:
            piece, control = self._stream.push(token), self._controls.get(token, "")
            if control in self.job.shown:
                piece, control = piece + control, ""
            text, stopped = self._stop.push(piece, control)
            texts.append(text)
            if stopped:
                break
        logprobs: tuple[TokenLogprob, ...] = ()
        if self.job.top_logprobs is not None:
            logprobs = (token_logprob(logits, drawn[0], self.job.top_logprobs),)
        if any(texts) or logprobs:
            count = len(self.tokens) - len(drawn) + len(texts)
            self.job.deliver(Piece(tuple(texts), count, logprobs, self.cached or 0))
        if stopped:
            self._end("stop")
        elif self.job.matcher is not None and self.job.matcher.ended:
            self._finish("stop")
        elif len(self.tokens) >= self.job.max_tokens:
            self._finish("length")
        else:
            return drawn
        return []

    def _finish(self, reason: str) -> None:
        """Delivers what was held back, then the end."""
        rest, stopped = self._stop.push(self._stream.end())
        rest += "" if stopped else self._stop.end()
        if rest:
            self.job.deliver(Piece((rest,), len(self.tokens), cached=self.cached or 0))
        self._end("stop" if stopped else reason)

    def _end(self, reason: str) -> None:
        prompt, cached = len(self.job.prompt), self.cached or 0
        self.job.deliver(End(reason, prompt, cached, len(self.tokens)))
