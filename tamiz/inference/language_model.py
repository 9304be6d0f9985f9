"""A decoder: text in, text out."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from tamiz.files.errors import TamizError
from tamiz.inference.batching import answer_together
from tamiz.inference.closing import Closing
from tamiz.inference.completion_stream import CompletionStream
from tamiz.inference.conversation import Conversation
from tamiz.inference.results import Completion
from tamiz.inference.settings import GenerationSettings
from tamiz.runtime.model import Model
from tamiz.runtime.speculation.settings import Speculation
from tamiz.runtime.text.chat_template import ChatTemplate, Message, encode_chat

if TYPE_CHECKING:
    from typing_extensions import Self

    from tamiz.runtime.text.tokenizer import Tokenizer

Prompt = str | Sequence[Message]


class LanguageModel(Closing):
    """A decoder bundle, loaded. Use it in one thread, and close it, or use it as a context manager.

    A prompt is a text, or messages ``{"role": "system" | "user" | "assistant", "content": …}``. A
    text becomes the message of a user where the model has a chat template, unless `raw` is set.

    The options of an answer are the fields of `GenerationSettings` (`max_new_tokens`, `stop`,
    `logprobs`) and of `Sampling` (`temperature`, `top_k`, `top_p`, `seed`, …). Without options the
    likeliest token is taken, and an answer ends where the model ends it or the context is full.

    Attributes:
        parts: The model of `tamiz.runtime`, for its sequences, batches and logits.
    """

    def __init__(self, parts: Model, speculation: str = "auto", context: int | None = None) -> None:
        """Wraps a loaded model; use `tamiz.load`.

        Args:
            parts: The model.
            speculation: Mode in which tokens are guessed ahead.
            context: Tokens of a prompt and its answer at most; None for the model's limit.

        Raises:
            TamizError: An unknown mode, or the model cannot have so many tokens.
        """
        self._speculation = Speculation(speculation)
        if context is not None:
            if not 1 <= context <= parts.limit:
                raise TamizError(
                    f"context is {context}, expected 1 to the model's limit of {parts.limit} tokens"
                )
            parts.limit = context
        self._parts: Model | None = parts

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        threads: int | None = None,
        context: int | None = None,
        without: str | Iterable[str] = (),
        speculation: str = "auto",
    ) -> Self:
        """Loads a decoder; see `tamiz.load`."""
        names = (without,) if isinstance(without, str) else without
        return cls(Model.load(directory, threads, names), speculation, context)

    @property
    def parts(self) -> Model:
        """See the class.

        Raises:
            TamizError: The model is closed.
        """
        if self._parts is None:
            raise TamizError("the model is closed, expected one that is open; try tamiz.load")
        return self._parts

    @property
    def context(self) -> int:
        """Tokens that a prompt and its answer can have."""
        return self.parts.limit

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.parts.tokenizer

    @cached_property
    def template(self) -> ChatTemplate:
        """The model's chat template.

        Raises:
            TamizError: It has none.
        """
        return ChatTemplate(self.tokenizer.settings)

    def generate(
        self, prompt: Prompt, *, raw: bool = False, control_tokens: bool = False, **options: Any
    ) -> Completion:
        """Answers a prompt.

        Args:
            prompt: A text or messages, see the class.
            raw: Continue the text as it is, without the chat template.
            control_tokens: Names of control tokens in the prompt become these tokens; by default
                they are text.
            **options: See the class; `tools` and `template_vars` are those of `encode`.

        Raises:
            TamizError: The prompt is empty or does not fit in the context, a value is out of its
                range, or the chat template refuses the messages.
            TypeError: There is no such option.
        """
        return self.stream(prompt, raw=raw, control_tokens=control_tokens, **options).complete()

    def stream(
        self, prompt: Prompt, *, raw: bool = False, control_tokens: bool = False, **options: Any
    ) -> CompletionStream:
        """Answers a prompt in pieces; arguments and errors are those of `generate`.

        Returns:
            An iterator over pieces of text; its `result` is what `generate` returns, once all
            pieces were taken.
        """
        values = _of_template(options)
        settings = GenerationSettings.of(options)
        ids = self.encode(prompt, raw=raw, control_tokens=control_tokens, **values)
        return CompletionStream(self.parts, ids, settings, self._speculation)

    def batch(
        self,
        prompts: Iterable[Prompt],
        *,
        raw: bool = False,
        control_tokens: bool = False,
        **options: Any,
    ) -> list[Completion]:
        """Answers several prompts; arguments and errors are those of `generate`.

        A run of the model has tokens of all prompts where the bundle allows it, which is faster:
        see the guide on batches. Each answer is the one that `generate` gives.

        Returns:
            One answer a prompt, in their order.
        """
        values = _of_template(options)
        settings = GenerationSettings.of(options)
        texts = [self.encode(p, raw=raw, control_tokens=control_tokens, **values) for p in prompts]
        return answer_together(self.parts, texts, settings, self._speculation)

    def chat(
        self, system: str | None = None, *, control_tokens: bool = False, **options: Any
    ) -> Conversation:
        """Starts a conversation, which keeps its cache between messages.

        Args:
            system: The system prompt; None for none.
            control_tokens: See `generate`.
            **options: Of every answer; see `generate`.

        Raises:
            TamizError: The model has no chat template, or a value is out of its range.
        """
        values = _of_template(options)
        settings = GenerationSettings.of(options)
        self.template  # noqa: B018  # a model without one is refused here
        encode = partial(self.encode, control_tokens=control_tokens, **values)
        return Conversation(self.parts, encode, settings, self._speculation, system)

    def count_tokens(self, prompt: Prompt) -> int:
        """Tokens of a text as it is, or of messages in the chat template.

        Raises:
            TamizError: The text cannot be tokenised, or the chat template refuses the messages.
        """
        return len(self.encode(prompt, raw=isinstance(prompt, str)))

    def encode(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        control_tokens: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_vars: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a prompt.

        Args:
            prompt: See `generate`.
            raw: See `generate`.
            control_tokens: See `generate`.
            tools: What the chat template offers the model to call, as JSON schemas.
            template_vars: Other variables of the chat template, such as ``enable_thinking``.

        Raises:
            TamizError: See `generate`.
        """
        most = self.parts.limit
        if isinstance(prompt, str):
            if raw or not self.tokenizer.settings.get("chat_template"):
                return self.tokenizer.encode(prompt, control_tokens=control_tokens, most=most)
            prompt = [{"role": "user", "content": prompt}]
        return encode_chat(
            self.tokenizer, self.template, prompt, control_tokens, tools, template_vars, most
        )

    def close(self) -> None:
        """Releases the model's memory; conversations and streams of it end as well."""
        self._parts = None
        self.__dict__.pop("template", None)


def _of_template(options: dict[str, Any]) -> dict[str, Any]:
    """Takes the options that the chat template gets out of those of an answer."""
    return {name: options.pop(name) for name in ("tools", "template_vars") if name in options}
