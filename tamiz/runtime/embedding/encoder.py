"""Runs an encoder bundle: embeddings of texts."""

from __future__ import annotations

from collections.abc import Sequence as Ids

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.embedding.modules import read_modules
from tamiz.runtime.embedding.text_session import Float32, TextSession


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
        first = self._session.output
        if first.type != "tensor(float)" or len(first.shape) != 3:
            raise TamizError(
                f"{bundle.model}: gives {first.name}, {first.type} {first.shape}, expected floats "
                "[texts, tokens, width]"
            )
        self.modules = read_modules(bundle, int(first.shape[-1]))
        self.width = self.modules.width(int(first.shape[-1]))
        self._directions = self.modules.directions()

    def encode(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64] | None = None, prompt: int = 0
    ) -> Float32:
        """Embeddings of texts, as the modules of the model make them.

        Args:
            ids: Token ids ``[texts, tokens]``, with those that begin and end a text.
            mask: ``[texts, tokens]``: 1 for a token, 0 for padding, which is on the right; None
                for no padding.
            prompt: Tokens of the prompt that each text begins with.

        Returns:
            ``[texts, width]``.
        """
        mask = np.ones_like(ids) if mask is None else mask
        found: Float32 = self.modules(self._session.run(ids, mask), mask, prompt)
        return found

    def embeddings(self, ids: NDArray[np.int64]) -> Float32:
        """Embeddings of texts of the same length, each scaled to length 1.

        Args:
            ids: Token ids ``[texts, tokens]``, with those that begin and end a text.

        Returns:
            ``[texts, width]``.
        """
        mask = np.ones_like(ids)
        found: Float32 = self._directions(self._session.run(ids, mask), mask)
        return found
