"""Runs an encoder bundle: embeddings of texts."""

from __future__ import annotations

from collections.abc import Sequence as Ids

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.embedding.modules import Modules, read_modules
from tamiz.runtime.embedding.text_session import Float32, TextSession, padded, padding_of


class Encoder:
    """An encoder bundle, loaded. Several threads may run it.

    Attributes:
        bundle: The bundle.
        modules: What makes an embedding of hidden states.
        width: Numbers of an embedding.
    """

    def __init__(
        self, bundle: Bundle, session: ort.InferenceSession, constants: Ids[ort.OrtValue] = ()
    ) -> None:
        """Wraps a session and the constants that were read for it; use `load_model`.

        Raises:
            TamizError: The model takes or gives something else than an encoder does, or has a
                module of sentence-transformers that is not supported.
        """
        self.bundle = bundle
        self._session = TextSession(bundle, session, constants)
        self._padding = padding_of(bundle)
        first = self._session.output
        if first.type != "tensor(float)" or len(first.shape) != 3:
            raise TamizError(
                f"{bundle.model}: gives {first.name}, {first.type} {first.shape}, expected floats "
                "[texts, tokens, width]"
            )
        self.modules = read_modules(bundle, int(first.shape[-1]))
        self.width = self.modules.width(int(first.shape[-1]))
        self._directions = self.modules.directions()

    def encode(self, rows: Ids[Ids[int]], prompt: int = 0) -> Float32:
        """Embeddings of texts, as the modules of the model make them.

        A built model runs the texts of a call together without padding: an embedding has the same
        bits in any company. Others are padded to the longest text.

        Args:
            rows: Token ids of each text, with those that begin and end it.
            prompt: Tokens of the prompt that each text begins with.

        Returns:
            ``[texts, width]``.
        """
        return self._embed(rows, self.modules, prompt)

    def embeddings(self, rows: Ids[Ids[int]] | NDArray[np.int64]) -> Float32:
        """Embeddings of texts, each scaled to length 1.

        Args:
            rows: Token ids of each text, with those that begin and end it.

        Returns:
            ``[texts, width]``.
        """
        return self._embed(rows, self._directions)

    def _embed(
        self, rows: Ids[Ids[int]] | NDArray[np.int64], modules: Modules, prompt: int = 0
    ) -> Float32:
        found: Float32
        if not self._session.packs:
            ids, mask = padded(list(rows), self._padding)
            found = modules(self._session.run(ids, mask), mask, prompt)
            return found
        found = np.empty((len(rows), self.width), np.float32)
        for texts, hidden in self._session.run_packed(list(rows)):
            begin = 0
            for number in range(texts.start, texts.stop):
                end = begin + len(rows[number])
                mask = np.ones((1, end - begin), np.int64)
                found[number] = modules(hidden[:, begin:end], mask, prompt)[0]
                begin = end
        return found
