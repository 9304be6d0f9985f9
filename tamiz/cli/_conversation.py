"""A conversation with a model: its messages, its KV cache and its speed."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.cli._generation import Generation
    from tamiz.runtime.model import Model
    from tamiz.runtime.text.chat_template import Message


class Conversation:
    """Messages that a model answers one after the other.

    Attributes:
        model: The model.
        messages: What was said so far, oldest first; a system prompt is the first one.
        last: Speed of the last answer.
        dropped: Turns that the last answer was the first to do without, as the context was full.
        answers: Number of answers.
        tokens: Tokens of all answers.
        seconds: Seconds of all answers, their prompts included.
    """

    def __init__(self, model: Model, generation: Generation) -> None:
        """Starts with nothing but the system prompt.

        Args:
            model: The model; its bundle has a tokenizer and a chat template.
            generation: How it answers.

        Raises:
            TamizError: The bundle has no tokenizer or no chat template.
        """
        from tamiz.runtime.text.chat_template import ChatTemplate
        from tamiz.runtime.text.stream import Speed

        self.model = model
        self.last = Speed()
        self.answers, self.tokens, self.seconds = 0, 0, 0.0
        self._template = ChatTemplate(model.tokenizer.settings)
        self._generation, self._sampling = generation, generation.sampling(model.bundle)
        self.reset(generation.system)

    @property
    def system(self) -> str | None:
        """The system prompt; None for none."""
        first = self.messages[0] if self.messages else None
        return first["content"] if first is not None and first["role"] == "system" else None

    @property
    def context(self) -> int:
        """Tokens in the KV cache."""
        return len(self._sequence.tokens)

    def reset(self, system: str | None) -> None:
        """Forgets all messages; `system` is the new system prompt."""
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})
        self._sequence = self.model.sequence()
        self.dropped = 0
        #: Messages after the system prompt that prompts do without.
        self._forgotten = 0

    def answer(self, text: str) -> Generator[str, None, None]:
        """Yields the answer to a message in pieces, and adds both to the conversation.

        An answer that is interrupted is kept as far as it came. A message that cannot be answered
        is not kept. Where the context is full, the model does not see the oldest turns.

        Raises:
            TamizError: The message does not fit into the model's context, or the text cannot be
                tokenized.
        """
        from tamiz.runtime.speculation.settings import Speculation
        from tamiz.runtime.text.stream import Speed, generate_text

        self.last, self.dropped = Speed(), 0
        self.messages.append({"role": "user", "content": text})
        answer, forgotten = "", self._forgotten
        try:
            self.model.tokenizer.check_length(text, self.model.limit)
            pieces = generate_text(
                self.model,
                self.model.tokenizer,
                self._prompt(),
                self._sampling,
                self._generation.max_new_tokens,
                self._generation.stop,
                self._sequence,
                self.last,
                Speculation(self._generation.speculate),
            )
            for piece in pieces:
                answer += piece
                yield piece
        except TamizError:
            self.messages.pop()
            self._forgotten = forgotten
            raise
        except (KeyboardInterrupt, GeneratorExit):
            self._sequence = self.model.sequence()  # a step may have been cut in two
            self._keep(answer)
            raise
        self._keep(answer)

    def _prompt(self) -> list[int]:
        """Token ids of the system prompt and of the latest turns that leave room for an answer."""
        room = self.model.limit // 4
        room = min(self._generation.max_new_tokens or room, room)
        while True:
            ids = self._encode()
            turns = [
                place
                for place, message in enumerate(self._turns)
                if place > self._forgotten and message["role"] == "user"
            ]
            if len(ids) + room <= self.model.limit or not turns:
                return ids
            self._forgotten = turns[0]
            self.dropped += 1

    @property
    def _turns(self) -> list[Message]:
        """The messages without the system prompt."""
        return self.messages[self.system is not None :]

    def _encode(self) -> list[int]:
        from tamiz.runtime.text.chat_template import encode_chat

        generation = self._generation
        start = self.messages[: self.system is not None]
        return encode_chat(
            self.model.tokenizer,
            self._template,
            [*start, *self._turns[self._forgotten :]],
            generation.allow_control_tokens,
            generation.tools,
            generation.template_vars,
        )

    def _keep(self, answer: str) -> None:
        self.messages.append({"role": "assistant", "content": answer})
        self.answers += 1
        self.tokens += self.last.tokens
        self.seconds += self.last.prompt_seconds + self.last.decode_seconds

    def save(self, path: Path) -> None:
        """Writes the messages as JSON.

        Raises:
            TamizError: The file exists or cannot be written.
        """
        import json

        from tamiz.files.errors import naming

        text = json.dumps({"messages": self.messages}, indent=1, ensure_ascii=False) + "\n"
        if path.exists():
            raise TamizError(f"{path}: exists and is not overwritten; try another name")
        with naming(path):
            path.write_text(text, "utf-8", "backslashreplace")
