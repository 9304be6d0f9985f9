"""A conversation with a model: its messages, its KV cache and its speed."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING

from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.runtime.model import Model
    from tamiz.runtime.sampling import Sampling
    from tamiz.runtime.text.chat_template import Message


class Conversation:
    """Messages that a model answers one after the other.

    Attributes:
        model: The model.
        messages: What was said so far, oldest first; a system prompt is the first one.
        last: Speed of the last answer.
        answers: Number of answers.
        tokens: Tokens of all answers.
        seconds: Seconds of all answers, their prompts included.
    """

    def __init__(
        self,
        model: Model,
        sampling: Sampling,
        max_new_tokens: int | None,
        stop: tuple[str, ...],
        speculate: str = "auto",
        system: str | None = None,
        control_tokens: bool = False,
    ) -> None:
        """Starts with nothing but the system prompt.

        Args:
            model: The model; its bundle has a tokenizer and a chat template.
            sampling: How tokens are drawn.
            max_new_tokens: Limit of each answer, in tokens; None for what the context leaves.
            stop: Strings that end an answer.
            speculate: Mode of `tamiz.runtime.speculation.settings.Speculation`.
            system: System prompt; None for none.
            control_tokens: Whether names of control tokens in messages become these tokens.

        Raises:
            TamizError: The bundle has no tokenizer or no chat template.
        """
        from tamiz.runtime.text.chat_template import ChatTemplate
        from tamiz.runtime.text.stream import Speed
        from tamiz.runtime.text.tokenizer import Tokenizer

        self.model = model
        self.last = Speed()
        self.answers, self.tokens, self.seconds = 0, 0, 0.0
        self._tokenizer = Tokenizer(model.bundle)
        self._template = ChatTemplate(self._tokenizer.settings)
        self._control_tokens = control_tokens
        self._speculate = speculate
        self._sampling, self._max_new_tokens, self._stop = sampling, max_new_tokens, stop
        self.reset(system)

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

    def answer(self, text: str) -> Generator[str, None, None]:
        """Yields the answer to a message in pieces, and adds both to the conversation.

        An answer that is interrupted is kept as far as it came. A message that cannot be answered
        is not kept.

        Raises:
            TamizError: The conversation does not fit into the model's context, or the text cannot
                be tokenized.
        """
        from tamiz.runtime.speculation.settings import Speculation
        from tamiz.runtime.text.chat_template import encode_chat
        from tamiz.runtime.text.stream import Speed, generate_text

        self.last = Speed()
        self.messages.append({"role": "user", "content": text})
        answer = ""
        try:
            ids = encode_chat(self._tokenizer, self._template, self.messages, self._control_tokens)
            pieces = generate_text(
                self.model,
                self._tokenizer,
                ids,
                self._sampling,
                self._max_new_tokens,
                self._stop,
                self._sequence,
                self.last,
                Speculation(self._speculate),
            )
            for piece in pieces:
                answer += piece
                yield piece
        except TamizError:
            self.messages.pop()
            raise
        except (KeyboardInterrupt, GeneratorExit):
            self._sequence = self.model.sequence()  # a step may have been cut in two
            self._keep(answer)
            raise
        self._keep(answer)

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
