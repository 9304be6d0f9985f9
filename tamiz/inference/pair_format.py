"""How a query and a text become the tokens of one sequence: side by side, or as messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.embedding.settings import TOKENIZER, TextSettings
from tamiz.runtime.text.chat_template import ChatTemplate, encode_chat
from tamiz.runtime.text.pairs import PairEnds, cut_pair
from tamiz.runtime.text.tokenizer import Tokenizer

#: Token ids, and the kind of each.
Encoded = tuple[list[int], list[int]]


class PairFormat(Protocol):
    """A way to write pairs.

    Attributes:
        context: Tokens of a pair at most; None for no limit.
    """

    context: int | None

    def encode(self, query: str, text: str, prompt: str) -> Encoded:
        """The tokens of a pair; a long one is cut to `context`.

        Args:
            query: The first text.
            text: The second text.
            prompt: What is put before them; empty for nothing.
        """

    def count(self, query: str, text: str, prompt: str) -> int:
        """Tokens of a pair before it is cut."""


def pair_format(
    bundle: Bundle, tokenizer: Tokenizer, settings: TextSettings, context: int | None
) -> PairFormat:
    """How the model of a bundle reads pairs.

    Args:
        bundle: The bundle.
        tokenizer: Its tokenizer.
        settings: What its files say of texts.
        context: Tokens of a pair at most; None for what the files say.

    Raises:
        TamizError: `context` is out of range, or there is no chat template where one is needed.
    """
    if settings.chat is None:
        return SideBySide(tokenizer, settings, context)
    template = ChatTemplate(bundle.json(TOKENIZER))
    return AsMessages(tokenizer, template, settings, context)


class SideBySide(PairFormat):
    """Both texts with the tokens between and around them that the tokenizer's files say."""

    def __init__(self, tokenizer: Tokenizer, settings: TextSettings, context: int | None) -> None:
        """See `pair_format`."""
        self._tokenizer, self._ends = tokenizer, PairEnds.of(tokenizer)
        self.context = settings.context(context, self._ends.specials + 2)
        self._typed = settings.token_types

    def encode(self, query: str, text: str, prompt: str) -> Encoded:
        """See `PairFormat`. The longer text loses tokens at its end until both fit."""
        a, b = (self._tokenizer.encode(part, bos=False) for part in (prompt + query, text))
        if self.context is not None:
            cut_pair(a, b, self.context - self._ends.specials)
        ids, kinds = self._ends.join(a, b)
        return ids, kinds if self._typed else [0] * len(ids)

    def count(self, query: str, text: str, prompt: str) -> int:
        """See `PairFormat`."""
        parts = (prompt + query, text)
        lengths = (len(self._tokenizer.encode(part, bos=False)) for part in parts)
        return self._ends.specials + sum(lengths)


class AsMessages(PairFormat):
    """Messages of the roles query and document, which the model's chat template writes.

    A prompt is a message of the role system, as in sentence-transformers.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        settings: TextSettings,
        context: int | None,
    ) -> None:
        """See `pair_format`."""
        assert settings.chat is not None
        variables: Mapping[str, Any] = settings.chat
        self._tokenizer, self._template = tokenizer, template
        self._answers = bool(variables.get("add_generation_prompt", False))
        self._variables = {k: v for k, v in variables.items() if k != "add_generation_prompt"}
        samples = [self._whole("a", text, "") for text in ("", "a", "b c")]
        if samples[0] == samples[1]:
            raise TamizError(
                "tokenizer_config.json: chat_template leaves out messages of the role document,"
                " expected one that writes the roles query and document"
            )
        self._suffix = _common_end(samples)
        self.context = settings.context(context, len(self._suffix) + 1)

    def encode(self, query: str, text: str, prompt: str) -> Encoded:
        """See `PairFormat`. Tokens are lost before what the template writes behind a document."""
        ids = self._whole(query, text, prompt)
        if self.context is not None and len(ids) > self.context:
            ids = [*ids[: self.context - len(self._suffix)], *self._suffix]
        return ids, [0] * len(ids)

    def count(self, query: str, text: str, prompt: str) -> int:
        """See `PairFormat`."""
        return len(self._whole(query, text, prompt))

    def _whole(self, query: str, text: str, prompt: str) -> list[int]:
        messages = [{"role": "system", "content": prompt}] if prompt else []
        messages += [{"role": "query", "content": query}, {"role": "document", "content": text}]
        return encode_chat(
            self._tokenizer,
            self._template,
            messages,
            variables=self._variables,
            add_generation_prompt=self._answers,
        )


def _common_end(rows: list[list[int]]) -> list[int]:
    """The longest end that all have."""
    ends: list[int] = []
    for tokens in zip(*map(reversed, rows), strict=False):
        if len(set(tokens)) > 1:
            break
        ends.append(tokens[0])
    return ends[::-1]
