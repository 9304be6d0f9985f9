"""An answer that is being generated."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING

from tamiz.files.errors import TamizError
from tamiz.inference.results import Completion, Usage
from tamiz.inference.settings import GenerationSettings
from tamiz.runtime.logprobs import TokenLogprob, token_logprob
from tamiz.runtime.speculation.settings import Speculation
from tamiz.runtime.speculation.statistics import SpeculationStatistics
from tamiz.runtime.text.stream import Speed, generate_text

if TYPE_CHECKING:
    from tamiz.runtime.model import Model
    from tamiz.runtime.sequence import Logits, Sequence


class CompletionStream(Iterator[str]):
    """Pieces of an answer's text, as they come.

    Attributes:
        text: The text so far.
        tokens: The tokens so far.
        speed: How long they took.
        cached_tokens: Tokens of the prompt that are in the cache.
        ended: Whether it has ended, complete or interrupted.
        interrupted: Whether it ended before it was complete.
    """

    def __init__(
        self,
        model: Model,
        prompt: list[int],
        settings: GenerationSettings,
        speculation: Speculation,
        sequence: Sequence | None = None,
        on_end: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Starts nothing: the first piece does.

        Args:
            model: The model.
            prompt: Token ids.
            settings: How the answer is generated.
            speculation: How tokens are guessed ahead.
            sequence: Continues there; see `Model.generate`.
            on_end: Called once with the text, when it is complete or was interrupted; not where it
                cannot be generated.
        """
        self.text = ""
        self.tokens: list[int] = []
        self.speed, self.ended, self.interrupted = Speed(), False, False
        self.cached_tokens = 0 if sequence is None else sequence.keep_prefix(prompt)
        self._statistics = SpeculationStatistics()
        self._model, self._prompt, self._settings = model, prompt, settings
        self._logprobs: list[TokenLogprob] = []
        self._on_end = on_end
        self._result: Completion | None = None
        self._pieces = self._generate(speculation, sequence)

    @property
    def result(self) -> Completion:
        """The whole answer.

        Raises:
            TamizError: It is not complete: not all pieces were taken.
        """
        if self._result is None:
            raise TamizError("the answer is not complete, expected all of its pieces to be taken")
        return self._result

    def __next__(self) -> str:
        """The next piece."""
        return next(self._pieces)

    def close(self) -> None:
        """Ends the answer as it is."""
        self._pieces.close()

    def complete(self) -> Completion:
        """Takes all pieces that are left; returns the whole answer."""
        for _ in self:
            pass
        return self.result

    def _generate(
        self, speculation: Speculation, sequence: Sequence | None
    ) -> Generator[str, None, None]:
        try:
            for piece in generate_text(
                self._model,
                self._model.tokenizer,
                self._prompt,
                self._settings.sampling,
                self._settings.max_new_tokens,
                self._settings.stop,
                sequence,
                self.speed,
                speculation,
                self._statistics,
                self._observe,
            ):
                self.text += piece
                if piece:
                    yield piece
        except (KeyboardInterrupt, GeneratorExit):
            self.ended = self.interrupted = True
            self._on_end(self.text)
            raise
        self._result, self.ended = self._complete(), True
        self._on_end(self.text)

    def _observe(self, token: int, logits: Logits) -> None:
        self.tokens.append(token)
        if self._settings.logprobs is not None:
            self._logprobs.append(token_logprob(logits, token, self._settings.logprobs))

    def _complete(self) -> Completion:
        prompt, limit = len(self._prompt), self._settings.max_new_tokens
        room = self._model.limit - prompt
        longest = room if limit is None else min(limit, room)
        # A stop string may end a text in its last token.
        whole = len(self.text) == len(self._model.tokenizer.decode(self.tokens))
        return Completion(
            self.text,
            tuple(self.tokens),
            "length" if len(self.tokens) == longest and whole else "stop",
            Usage(prompt, self.cached_tokens, len(self.tokens)),
            self.speed,
            self._statistics,
            None if self._settings.logprobs is None else tuple(self._logprobs),
        )
