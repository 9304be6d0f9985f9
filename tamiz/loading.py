"""`tamiz.load`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from tamiz.building.of_source import as_bundle
from tamiz.files.errors import TamizError
from tamiz.inference.cross_encoder import CrossEncoder
from tamiz.inference.embedding_model import EmbeddingModel
from tamiz.inference.language_model import LanguageModel
from tamiz.runtime.embedding.classifier import Classifier
from tamiz.runtime.embedding.encoder import Encoder
from tamiz.runtime.load import load_model
from tamiz.runtime.model import Model

_LOG = logging.getLogger("tamiz")


def load(
    source: str | os.PathLike[str],
    *,
    threads: int | None = None,
    context: int | None = None,
    without: str | Iterable[str] = (),
    speculation: str = "auto",
) -> LanguageModel | EmbeddingModel | CrossEncoder:
    """Loads a model.

    Args:
        source: A bundle, which `tamiz export` or `tamiz build` wrote, or what `tamiz export` takes:
            a GGUF file or a folder. Of a source that is no bundle one is built the first time, as
            `tamiz serve` does it, and kept in the user's cache. The logger ``tamiz`` says so.
        threads: Threads that work on one run; None for the physical cores.
        context: Tokens of a prompt and its answer, or of a text of an encoder, at most; None for
            the model's limit.
        without: Techniques of a decoder to switch off, or `auto`; see `Model.load`.
        speculation: How a decoder guesses tokens ahead: ``auto`` (never changes an answer),
            ``off``, ``ngram`` or ``self``.

    Returns:
        A `LanguageModel` for a decoder, an `EmbeddingModel` for an encoder, a `CrossEncoder` for
        an encoder with a head that classifies.

    Raises:
        TamizError: No valid bundle or source, onnxruntime refuses it, one of `without` cannot be
            switched off, or a value is out of its range.
    """
    names = (without,) if isinstance(without, str) else tuple(without)
    model = load_model(as_bundle(source, _LOG.info), threads, names)
    if not isinstance(model, Model) and speculation not in ("auto", "off"):
        raise TamizError(f"{source}: is an encoder, which guesses no tokens ahead")
    if isinstance(model, Classifier):
        return CrossEncoder(model, context)
    if isinstance(model, Encoder):
        return EmbeddingModel(model, context)
    return LanguageModel(model, speculation, context)
