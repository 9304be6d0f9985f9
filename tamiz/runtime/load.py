"""Loads the bundle of a decoder, of an encoder, or of a classifier."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.runtime.embedding.classifier import Classifier
from tamiz.runtime.embedding.encoder import Encoder
from tamiz.runtime.model import Model
from tamiz.runtime.session import load_session


def load_model(
    directory: str | os.PathLike[str], threads: int | None = None, without: Sequence[str] = ()
) -> Model | Encoder | Classifier:
    """Opens a bundle: the outputs say whether it is a decoder, a classifier or an encoder.

    Args:
        directory: The bundle.
        threads: Threads that work on one run; None leaves it to onnxruntime (physical cores).
        without: Techniques of a decoder to switch off.

    Raises:
        TamizError: No valid bundle, or onnxruntime refuses it; or one of `without` cannot be
            switched off.
    """
    bundle = Bundle.open(directory)
    session, constants = load_session(bundle, threads)
    gives_logits = any(value.name == "logits" for value in session.get_outputs())
    classifies = gives_logits and len(session.get_outputs()[0].shape) == 2
    if gives_logits and not classifies:
        return Model(bundle, session, constants, without)
    if without:
        raise TamizError(
            f"{bundle.path}: is an encoder, of which nothing can be switched off, found "
            f"--without={','.join(without)}"
        )
    if classifies:
        return Classifier(bundle, session, constants)
    return Encoder(bundle, session, constants)
