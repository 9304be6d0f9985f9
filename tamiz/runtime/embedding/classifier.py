"""Runs a bundle of an encoder with a head that classifies texts, or pairs of them."""

from __future__ import annotations

from collections.abc import Sequence as Ids

import numpy as np
import onnxruntime as ort

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.embedding.text_session import Float32, TextSession, padded, padding_of


class Classifier:
    """A classifier bundle, loaded. Several threads may run it.

    Attributes:
        bundle: The bundle.
        count: Number of labels.
        labels: Names of the labels, by their number.
    """

    def __init__(
        self, bundle: Bundle, session: ort.InferenceSession, constants: Ids[ort.OrtValue] = ()
    ) -> None:
        """Wraps a session and the constants that were read for it; use `load_model`.

        Raises:
            TamizError: The model takes or gives something else than a classifier does.
        """
        self.bundle = bundle
        self._session = TextSession(bundle, session, constants)
        self._padding = padding_of(bundle)
        first = self._session.output
        if first.type != "tensor(float)" or len(first.shape) != 2:
            raise TamizError(
                f"{bundle.model}: gives {first.name}, {first.type} {first.shape}, expected floats "
                "[texts, labels]"
            )
        names = bundle.json("config.json").get("id2label") or {}
        size = first.shape[1]
        self.count = size if isinstance(size, int) else len(names)
        self.labels = [str(names.get(str(n), f"LABEL_{n}")) for n in range(self.count)]

    def logits(self, rows: Ids[Ids[int]], types: Ids[Ids[int]] | None = None) -> Float32:
        """Logits ``[texts, labels]``.

        Args:
            rows: Token ids of each text, with those that begin and end it.
            types: Kinds of these tokens; None for 0.
        """
        if self._session.packs:
            return np.concatenate([found for _, found in self._session.run_packed(rows, types)])
        ids, mask = padded(rows, self._padding)
        return self._session.run(ids, mask, None if types is None else padded(types, 0)[0])
