"""A conversation: its messages, and the cache that it keeps between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tamiz.inference.completion_stream import CompletionStream
from tamiz.inference.results import Completion
from tamiz.inference.settings import GenerationSettings
from tamiz.runtime.speculation.settings import Speculation

if TYPE_CHECKING:
    from tamiz.runtime.model import Model
    from tamiz.runtime.text.chat_template import Message


class Conversation:
    """Messages that a model answers one after the other; a turn runs only what is new.

    Attributes:
        parts: The model of `tamiz.runtime`.
        history: What was said so far, oldest first; a system prompt is the first message.
        dropped: Turns that the last answer was the first to do without, as the context was full.
    """

    def __init__(
        self,
        parts: Model,
        encode: Callable[[Sequence[Message]], list[int]],
        settings: GenerationSettings,
        speculation: Speculation,
        system: str | None = None,
    ) -> None:
        """Starts with nothing but the system prompt; use `LanguageModel.chat`."""
        self.parts, self._encode = parts, encode
        self._settings, self._speculation = settings, speculation
        self.reset(system)

    @property
    def system(self) -> str | None:
        """The system prompt; None for none."""
        first = self.history[0] if self.history else None
        return first["content"] if first is not None and first["role"] == "system" else None

    @property
    def cached_tokens(self) -> int:
        """Tokens in the KV cache."""
        return len(self._sequence.tokens)

    def reset(self, system: str | None = None) -> None:
        """Forgets all messages; `system` is the new system prompt."""
        self.history: list[Message] = []
        if system is not None:
            self.history.append({"role": "system", "content": system})
        self._sequence = self.parts.sequence()
        self.dropped = 0
        #: Messages after the system prompt that prompts do without.
        self._forgotten = 0

    def send(self, text: str) -> Completion:
        """Answers a message, and adds both to the history.

        Where the context is full, the model does not see the oldest turns; see `dropped`.

        Raises:
            TamizError: The message does not fit in the context, or cannot be tokenised; it is not
                kept.
        """
        return self.stream(text).complete()

    def stream(self, text: str) -> CompletionStream:
        """As `send`, in pieces. An answer that is interrupted is kept as far as it came."""
        self.parts.tokenizer.check_length(text, self.parts.limit)
        message: Message = {"role": "user", "content": text}
        ids, forgotten, self.dropped = self._prompt(message)

        def keep(answer: str) -> None:
            self.history += [message, {"role": "assistant", "content": answer}]
            self._forgotten = forgotten
            if stream.interrupted:  # a step may have been cut in two
                self._sequence = self.parts.sequence()

        stream = CompletionStream(
            self.parts, ids, self._settings, self._speculation, self._sequence, keep
        )
        return stream

    def _prompt(self, message: Message) -> tuple[list[int], int, int]:
        """The prompt of a message, with the latest turns that leave room for an answer.

        Returns:
            Its token ids, the messages that it does without, and how many turns it is the first to
            do without.
        """
        start = self.history[: self.system is not None]
        turns = [*self.history[len(start) :], message]
        room = self.parts.limit // 4
        room = min(self._settings.max_new_tokens or room, room)
        begins = [place for place, turn in enumerate(turns) if turn["role"] == "user"]
        later = [place for place in begins if place > self._forgotten]
        forgotten, dropped = self._forgotten, 0
        while True:
            ids = self._encode([*start, *turns[forgotten:]])
            if len(ids) + room <= self.parts.limit or dropped == len(later):
                return ids, forgotten, dropped
            forgotten, dropped = later[dropped], dropped + 1
