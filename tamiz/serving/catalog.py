"""The models that a server has, by name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from tamiz.files.bundle import VOCABULARY
from tamiz.files.errors import TamizError
from tamiz.inference.cross_encoder import CrossEncoder
from tamiz.inference.embedding_model import EmbeddingModel
from tamiz.runtime.embedding.classifier import Classifier
from tamiz.runtime.load import load_model
from tamiz.runtime.model import Model
from tamiz.runtime.text.chat_template import ChatTemplate
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.serving import harmony
from tamiz.serving.engine import Engine, Limits
from tamiz.serving.errors import ApiError
from tamiz.serving.grammar import Grammars
from tamiz.serving.parts import REASONING
from tamiz.serving.tool_calls import ToolForm


@dataclass(eq=False)
class ServedDecoder:
    """A decoder with its engine.

    Attributes:
        name: Its name in requests.
        model: The model.
        tokenizer: Its tokenizer.
        engine: What makes its answers.
        created: When it was loaded, in seconds since 1970.
    """

    name: str
    model: Model
    tokenizer: Tokenizer
    engine: Engine
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def start(cls, name: str, model: Model, limits: Limits) -> ServedDecoder:
        """Starts an engine for a model.

        Raises:
            TamizError: The bundle has no tokenizer, or does not run with several sequences.
        """
        tokenizer = Tokenizer(model.bundle)
        return cls(name, model, tokenizer, Engine(model, tokenizer, limits))

    @cached_property
    def template(self) -> ChatTemplate:
        """Its chat template.

        Raises:
            TamizError: It has none.
        """
        return ChatTemplate(self.tokenizer.settings)

    @property
    def template_text(self) -> str:
        """Source of its chat template; empty where it has none."""
        source = self.tokenizer.settings.get("chat_template")
        return source if isinstance(source, str) else ""

    @cached_property
    def form(self) -> ToolForm:
        """How it writes calls of tools."""
        return ToolForm.of(self.template_text)

    @property
    def harmony(self) -> bool:
        """Whether it writes messages of the harmony form."""
        return harmony.shown_by(self.template_text)

    @property
    def reasons(self) -> bool:
        """Whether its template speaks of reasoning."""
        return REASONING[1] in self.template_text

    @cached_property
    def grammars(self) -> Grammars:
        """Compiles grammars for it."""
        text = self.model.bundle.file(VOCABULARY).read_text("utf-8")
        if not self.model.stop_ids:
            raise TamizError(f"{self.name}: has no token that ends an answer, which grammars need")
        return Grammars(text, self.model.vocabulary, sorted(self.model.stop_ids))

    def close(self, seconds: float) -> None:
        """Ends its engine; see `Engine.close`."""
        self.engine.close(seconds)


_Model = TypeVar("_Model", EmbeddingModel, CrossEncoder)


@dataclass(eq=False)
class _ServedInTurn(Generic[_Model]):
    """A model that answers one request after the other.

    Attributes:
        name: Its name in requests.
        model: The model.
        created: When it was loaded, in seconds since 1970.
    """

    name: str
    model: _Model
    created: int = field(default_factory=lambda: int(time.time()))
    _one: Lock = field(default_factory=Lock, repr=False)

    @property
    def tokenizer(self) -> Tokenizer:
        """Its tokenizer."""
        return self.model.tokenizer

    def close(self, seconds: float) -> None:
        """Has nothing to end."""


class ServedEncoder(_ServedInTurn[EmbeddingModel]):
    """An encoder."""

    def embed(
        self, texts: Sequence[str], dimensions: int | None
    ) -> tuple[NDArray[np.float32], int]:
        """Embeddings ``[texts, width]``, each of length 1, and the tokens of all texts.

        Args:
            texts: The texts.
            dimensions: Numbers to keep of each embedding; None for all.
        """
        with self._one:
            kept, tokens = self.model.embed(texts)[:, :dimensions], self.model.speed.tokens
        return kept / np.linalg.norm(kept, axis=1, keepdims=True), tokens


class ServedReranker(_ServedInTurn[CrossEncoder]):
    """A classifier of pairs."""

    def rerank(self, query: str, texts: Sequence[str]) -> tuple[NDArray[np.float32], int]:
        """How well each text answers a query, and the tokens of all pairs."""
        with self._one:
            return self.model.rerank(query, texts), self.model.speed.tokens


Served = ServedDecoder | ServedEncoder | ServedReranker


#: What models make, by their kind.
_MADE: dict[type[Served], str] = {
    ServedDecoder: "text",
    ServedEncoder: "embeddings",
    ServedReranker: "scores",
}


def _made(served: Served) -> str:
    return _MADE[type(served)]


class Catalog:
    """The models of a server.

    Attributes:
        served: Each by its name, in the order in which they were added.
    """

    def __init__(self) -> None:
        """Has none yet."""
        self.served: dict[str, Served] = {}

    def add(self, served: Served) -> None:
        """Adds a model under its name."""
        self.served[served.name] = served

    def decoder(self, name: str | None) -> ServedDecoder:
        """A model that makes text; without a name the first one.

        Raises:
            ApiError: There is none of this name, or it makes no text.
        """
        found = self.find(name, ServedDecoder)
        if not isinstance(found, ServedDecoder):
            raise ApiError(400, f"the model {found.name} makes {_made(found)}, not text", "model")
        return found

    def encoder(self, name: str | None) -> ServedEncoder:
        """A model that makes embeddings; without a name the first one.

        Raises:
            ApiError: There is none of this name, or it makes no embeddings.
        """
        found = self.find(name, ServedEncoder)
        if not isinstance(found, ServedEncoder):
            made = _made(found)
            raise ApiError(400, f"the model {found.name} makes {made}, not embeddings", "model")
        return found

    def reranker(self, name: str | None) -> ServedReranker:
        """A model that scores documents; without a name the first one.

        Raises:
            ApiError: There is none of this name, or it scores no documents.
        """
        found = self.find(name, ServedReranker)
        if not isinstance(found, ServedReranker):
            made = _made(found)
            raise ApiError(400, f"the model {found.name} makes {made}, not scores", "model")
        return found

    def close(self, seconds: float) -> None:
        """Ends all engines; waits at most so long for answers that are being made."""
        end = time.monotonic() + seconds
        for served in self.served.values():
            served.close(max(0.0, end - time.monotonic()))

    def find(self, name: str | None, kind: type[Served] | None = None) -> Served:
        """A model of any kind; without a name the first one of `kind`, or else the first one.

        Raises:
            ApiError: There is none of this name, or none at all.
        """
        if name is None:
            all_served = list(self.served.values())
            preferred = [s for s in all_served if kind is not None and isinstance(s, kind)]
            found = next(iter(preferred or all_served), None)
        else:
            found = self.served.get(name)
        if found is None:
            names = ", ".join(self.served) or "none"
            raise ApiError(
                404, f"there is no model {name}; there are: {names}", "model", "model_not_found"
            )
        return found


def load(path: str, name: str, threads: int | None, limits: Limits) -> Served:
    """Loads a bundle.

    Raises:
        TamizError: No valid bundle, or one that cannot be served.
    """
    model = load_model(path, threads)
    if isinstance(model, Model):
        return ServedDecoder.start(name, model, limits)
    if isinstance(model, Classifier):
        return ServedReranker(name, CrossEncoder(model))
    return ServedEncoder(name, EmbeddingModel(model))
