"""An encoder: texts in, vectors out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tamiz.files.errors import TamizError
from tamiz.inference.closing import Closing
from tamiz.inference.text_batches import Progress, TextSpeed, in_batches
from tamiz.runtime.embedding.encoder import Encoder
from tamiz.runtime.embedding.modules import Normalize
from tamiz.runtime.embedding.settings import read_settings
from tamiz.runtime.load import load_model
from tamiz.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self


class EmbeddingModel(Closing):
    """An encoder bundle, loaded. Close it, or use it as a context manager.

    Pooling, prompts and length of texts are those that the files of sentence-transformers in the
    bundle say; without such files an embedding is the mean over the tokens of a text.

    Attributes:
        tokenizer: The model's tokenizer.
        width: Numbers of an embedding.
        context: Tokens of a text at most, longer ones are cut; None for no limit.
        prompts: What may be put before a text, by name.
        speed: Of the last request.
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
        self.speed = TextSpeed()
        self.width, self.prompts = encoder.width, dict(self._settings.prompts)
        least = len(self._first) + len(self._last) + 1
        self.context = self._settings.context(context, least)

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
        truncate_dim: int | None = None,
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """Embeddings of texts.

        Args:
            texts: The texts, or one.
            batch_size: Texts of a run, those of similar length together. A built encoder runs them
                without padding, and an embedding has the same bits in any company; of other
                bundles padding changes an embedding by rounding only.
            normalize: Scale every embedding to length 1, also where the model's modules do not.
            prompt_name: Name of the prompt to put before each text; None for the model's default.
            prompt: What to put before each text instead.
            truncate_dim: First numbers of an embedding to keep, of a model that was trained so
                (Matryoshka); None for the bundle's ``truncate_dim``, or else all. As in
                sentence-transformers they are scaled to length 1 again only by `normalize`.
            progress: Called with the texts that are done and their number in all.

        Returns:
            ``[texts, width]``, or ``[width]`` for one text.

        Raises:
            TamizError: A text cannot be tokenised, there is no such prompt, `batch_size` is below
                1, or `truncate_dim` is not from 1 to `width`.
        """
        if prompt_name is not None and prompt is not None:
            raise TypeError("'prompt_name' and 'prompt' exclude each other")
        if isinstance(texts, str):
            one: NDArray[np.float32] = self.embed(
                [texts],
                batch_size=batch_size,
                normalize=normalize,
                prompt_name=prompt_name,
                prompt=prompt,
                truncate_dim=truncate_dim,
                progress=progress,
            )[0]
            return one
        kept = self._kept(truncate_dim)
        before = self._settings.prompt(prompt_name) if prompt is None else prompt
        ids = [self.encode(before + text) for text in texts]
        prompted = len(self.encode(before)) - len(self._last) if before else 0
        found = np.zeros((len(ids), self.width), np.float32)
        self.speed = TextSpeed()
        for chosen in in_batches([len(row) for row in ids], batch_size, progress, self.speed):
            found[chosen] = self._run([ids[number] for number in chosen], prompted)
        found = found[:, :kept]
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

    def _plain(self, text: str) -> list[int]:
        if self._settings.lower_case:
            from tokenizers.normalizers import Lowercase

            text = Lowercase().normalize_str(text)
        return self.tokenizer.encode(text, bos=False)

    def _run(self, ids: list[list[int]], prompt: int) -> NDArray[np.float32]:
        """Embeddings of texts that are run together."""
        if self._encoder is None:
            raise TamizError("the model is closed, expected one that is open; try tamiz.load")
        return self._encoder.encode(ids, prompt)

    def _kept(self, truncate_dim: int | None) -> int:
        """Numbers of an embedding that are kept."""
        if truncate_dim is None:
            truncate_dim = self._settings.truncate_dim
        if truncate_dim is not None and not 1 <= truncate_dim <= self.width:
            raise TamizError(f"truncate_dim is {truncate_dim}, expected 1 to {self.width}")
        return self.width if truncate_dim is None else truncate_dim
