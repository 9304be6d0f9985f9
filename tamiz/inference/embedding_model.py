"""An encoder: texts in, vectors out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tamiz.files.errors import TamizError
from tamiz.runtime.embedding.encoder import Encoder
from tamiz.runtime.embedding.modules import Normalize
from tamiz.runtime.embedding.settings import read_settings
from tamiz.runtime.load import load_model
from tamiz.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self


class EmbeddingModel:
    """An encoder bundle, loaded. Close it, or use it as a context manager.

    Pooling, prompts and length of texts are those that the files of sentence-transformers in the
    bundle say; without such files an embedding is the mean over the tokens of a text.

    Attributes:
        tokenizer: The model's tokenizer.
        width: Numbers of an embedding.
        context: Tokens of a text at most, longer ones are cut; None for no limit.
        prompts: What may be put before a text, by name.
    """

    def __init__(self, encoder: Encoder, context: int | None = None) -> None:
        """Wraps a loaded encoder; use `tamiz.load`.

        Args:
            encoder: The encoder.
            context: Tokens of a text at most; None for what the bundle says.

        Raises:
            TamizError: The bundle has no tokenizer, a file is malformed, or `context` is more than
                the model can have.
        """
        self._encoder: Encoder | None = encoder
        self._settings = read_settings(encoder.bundle)
        self.tokenizer = Tokenizer(encoder.bundle)
        self._first, self._last = self.tokenizer.ends()
        self._padding = _padding(encoder)
        self.width, self.prompts = encoder.width, dict(self._settings.prompts)
        limit = self._settings.limit
        ends = len(self._first) + len(self._last)
        if context is not None and not ends < context <= (limit or context):
            most = "" if limit is None else f" to {limit}"
            raise TamizError(f"context is {context}, expected {ends + 1}{most} tokens")
        self.context = context or limit

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        threads: int | None = None,
        context: int | None = None,
    ) -> Self:
        """Loads an encoder; see `tamiz.load`.

        Raises:
            TamizError: No valid bundle, or not an encoder.
        """
        encoder = load_model(directory, threads)
        if not isinstance(encoder, Encoder):
            raise TamizError(f"{directory}: is a decoder, expected an encoder; try tamiz.load")
        return cls(encoder, context)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        batch_size: int = 32,
        normalize: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
    ) -> NDArray[np.float32]:
        """Embeddings of texts.

        Args:
            texts: The texts, or one.
            batch_size: Texts of a run. Texts of similar length are run together, padded to the
                longest; padding changes no embedding beyond rounding.
            normalize: Scale every embedding to length 1, also where the model's modules do not.
            prompt_name: Name of the prompt to put before each text; None for the model's default.
            prompt: What to put before each text instead.

        Returns:
            ``[texts, width]``, or ``[width]`` for one text.

        Raises:
            TamizError: A text cannot be tokenised, there is no such prompt, or `batch_size` is
                below 1.
        """
        if batch_size < 1:
            raise TamizError(f"batch_size is {batch_size}, expected at least 1")
        if prompt_name is not None and prompt is not None:
            raise TypeError("'prompt_name' and 'prompt' exclude each other")
        if isinstance(texts, str):
            one = self.embed([texts], normalize=normalize, prompt_name=prompt_name, prompt=prompt)
            first: NDArray[np.float32] = one[0]
            return first
        before = self._settings.prompt(prompt_name) if prompt is None else prompt
        ids = [self.encode(before + text) for text in texts]
        prompted = len(self.encode(before)) - len(self._last) if before else 0
        found = np.zeros((len(ids), self.width), np.float32)
        order = sorted(range(len(ids)), key=lambda number: len(ids[number]))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            found[chosen] = self._run([ids[number] for number in chosen], prompted)
        if normalize and len(found):
            found = Normalize()(found)
        return found

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, cut to `context`, between those that begin and end a text.

        Raises:
            TamizError: The text cannot be tokenised.
        """
        ids = self._plain(text)
        if self.context is not None:
            del ids[max(0, self.context - len(self._first) - len(self._last)) :]
        return [*self._first, *ids, *self._last]

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, with those that begin and end it; of a long text, before it is cut."""
        return len(self._first) + len(self._plain(text)) + len(self._last)

    def close(self) -> None:
        """Releases the model's memory."""
        self._encoder = None

    def __enter__(self) -> Self:
        """Returns the model."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the model."""
        self.close()

    def _plain(self, text: str) -> list[int]:
        if self._settings.lower_case:
            from tokenizers.normalizers import Lowercase

            text = Lowercase().normalize_str(text)
        return self.tokenizer.encode(text, bos=False)

    def _run(self, ids: list[list[int]], prompt: int) -> NDArray[np.float32]:
        """Embeddings of texts that are run together."""
        if self._encoder is None:
            raise TamizError("the model is closed, expected one that is open; try tamiz.load")
        length = max(map(len, ids))
        padded = np.full((len(ids), length), self._padding, np.int64)
        mask = np.zeros_like(padded)
        for row, of_row, text in zip(padded, mask, ids, strict=True):
            row[: len(text)], of_row[: len(text)] = text, 1
        return self._encoder.encode(padded, mask, prompt)


def _padding(encoder: Encoder) -> int:
    """The id of padding, at which models such as RoBERTa recognise it."""
    bundle = encoder.bundle
    config = bundle.json("config.json") if "config.json" in bundle.manifest.files else {}
    number = config.get("pad_token_id")
    return number if type(number) is int and number >= 0 else 0
