"""A classifier of texts or of pairs: scores of passages for a query, probabilities of labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamiz.files.errors import TamizError
from tamiz.inference.closing import Closing
from tamiz.inference.text_batches import Progress, TextSpeed, in_batches
from tamiz.runtime.embedding.classifier import Classifier
from tamiz.runtime.embedding.settings import read_settings
from tamiz.runtime.load import load_model
from tamiz.runtime.text.pairs import PairEnds, cut_pair
from tamiz.runtime.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Self

Floats = NDArray[np.float32]
#: One text, or two that belong together.
Text = str | tuple[str, str]


class CrossEncoder(Closing):
    """A classifier bundle, loaded. Close it, or use it as a context manager.

    Attributes:
        tokenizer: The model's tokenizer.
        labels: Names of the labels.
        context: Tokens of a text or of a pair at most, longer ones are cut; None for no limit.
        speed: Of the last request.
    """

    def __init__(self, classifier: Classifier, context: int | None = None) -> None:
        """Wraps a loaded classifier; use `tamiz.load`.

        Args:
            classifier: The classifier.
            context: Tokens of a text or a pair at most; None for what the bundle says.

        Raises:
            TamizError: The bundle has no tokenizer, a file is malformed, or `context` is more than
                the model can have.
        """
        self._classifier: Classifier | None = classifier
        self.tokenizer = Tokenizer(classifier.bundle)
        self.labels = classifier.labels
        self._ends, self._pair = self.tokenizer.ends(), PairEnds.of(self.tokenizer)
        settings = read_settings(classifier.bundle)
        self.context = settings.context(context, self._pair.specials + 2)
        config = classifier.bundle.json("config.json")
        self._scores = _scores_of(config, classifier.count)
        self._probabilities = _probabilities_of(config, classifier.count)
        self.speed = TextSpeed()

    @classmethod
    def load(
        cls,
        directory: str | os.PathLike[str],
        *,
        threads: int | None = None,
        context: int | None = None,
    ) -> Self:
        """Loads a classifier; see `tamiz.load`.

        Raises:
            TamizError: No valid bundle, or not a classifier.
        """
        model = load_model(directory, threads)
        if not isinstance(model, Classifier):
            raise TamizError(f"{directory}: has no head that classifies; try tamiz.load")
        return cls(model, context)

    def rerank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Floats:
        """How well each text answers a query, as ``CrossEncoder.predict`` of sentence-transformers.

        Scores pass through the activation that config.json names; without one through a sigmoid.

        Args:
            query: The query.
            texts: The texts.
            batch_size: Texts of a run.
            progress: Called with the texts that are done and their number in all.

        Returns:
            ``[texts]``; the largest is the best.

        Raises:
            TamizError: The model has several labels, a text cannot be tokenised, or `batch_size`
                is below 1.
        """
        if len(self.labels) != 1:
            raise TamizError(
                f"the model has {len(self.labels)} labels ({', '.join(self.labels)}), expected one"
                " score; try classify"
            )
        pairs = [(query, text) for text in texts]
        found: Floats = self._scores(self.logits(pairs, batch_size, progress))[:, 0]
        return found

    def classify(
        self,
        texts: Text | Sequence[Text],
        *,
        batch_size: int = 32,
        progress: Progress | None = None,
    ) -> Floats:
        """Probabilities of the labels, as the pipeline ``text-classification`` of transformers.

        They are a sigmoid of each logit where there is one label or config.json has the problem
        type ``multi_label_classification``, the logits for ``regression``, else their softmax.

        Args:
            texts: Texts, or pairs as tuples; or one.
            batch_size: Texts of a run.
            progress: Called with the texts that are done and their number in all.

        Returns:
            ``[texts, labels]``, or ``[labels]`` for one text; names are in `labels`.

        Raises:
            TamizError: A text cannot be tokenised, or `batch_size` is below 1.
        """
        if isinstance(texts, (str, tuple)):
            one: Floats = self.classify([texts], batch_size=batch_size, progress=progress)[0]
            return one
        return self._probabilities(self.logits(texts, batch_size, progress))

    def logits(
        self, texts: Sequence[Text], batch_size: int = 32, progress: Progress | None = None
    ) -> Floats:
        """Logits ``[texts, labels]``; see `classify`."""
        if self._classifier is None:
            raise TamizError("the model is closed, expected one that is open; try tamiz.load")
        rows = [self.encode(text) for text in texts]
        found = np.zeros((len(rows), len(self.labels)), np.float32)
        self.speed = TextSpeed()
        lengths = [len(ids) for ids, _ in rows]
        for chosen in in_batches(lengths, batch_size, progress, self.speed):
            ids, kinds = zip(*(rows[number] for number in chosen), strict=True)
            found[chosen] = self._classifier.logits(ids, kinds)
        return found

    def encode(self, text: Text) -> tuple[list[int], list[int]]:
        """Token ids of a text or a pair, cut to `context`, and the kind of each.

        Of a pair the longer text loses tokens at its end until both fit.

        Raises:
            TamizError: The text cannot be tokenised.
        """
        if isinstance(text, str):
            first, last = self._ends
            ids = self.tokenizer.encode(text, bos=False)
            if self.context is not None:
                del ids[max(0, self.context - len(first) - len(last)) :]
            ids = [*first, *ids, *last]
            return ids, [0] * len(ids)
        a, b = (self.tokenizer.encode(part, bos=False) for part in text)
        if self.context is not None:
            cut_pair(a, b, self.context - self._pair.specials)
        return self._pair.join(a, b)

    def count_tokens(self, text: Text) -> int:
        """Tokens of a text or a pair with those around it; of a long one, before it is cut."""
        if isinstance(text, str):
            first, last = self._ends
            return len(first) + len(self.tokenizer.encode(text, bos=False)) + len(last)
        parts = (len(self.tokenizer.encode(part, bos=False)) for part in text)
        return self._pair.specials + sum(parts)

    def close(self) -> None:
        """Releases the model's memory."""
        self._classifier = None


def _sigmoid(x: Floats) -> Floats:
    found: Floats = 0.5 * (1 + np.tanh(0.5 * x))
    return found


def _softmax(x: Floats) -> Floats:
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    found: Floats = powers / powers.sum(axis=1, keepdims=True)
    return found


def _unchanged(x: Floats) -> Floats:
    return x


_ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "torch.nn.modules.activation.Sigmoid": _sigmoid,
    "torch.nn.modules.activation.Tanh": np.tanh,
    "torch.nn.modules.activation.Softmax": _softmax,
    "torch.nn.modules.linear.Identity": _unchanged,
}


def _scores_of(config: dict[str, Any], labels: int) -> Callable[[Floats], Floats]:
    """What sentence-transformers applies to logits: as config.json says, else a sigmoid of one.

    Raises:
        TamizError: config.json names another function than those that are known.
    """
    own = config.get("sentence_transformers")
    name = own.get("activation_fn") if isinstance(own, dict) else None
    name = name or config.get("sbert_ce_default_activation_function")
    if name is None:
        return _sigmoid if labels == 1 else _unchanged
    if name not in _ACTIVATIONS:
        raise TamizError(
            f"config.json: activation_fn is {name!r}, expected one of {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[name]


def _probabilities_of(config: dict[str, Any], labels: int) -> Callable[[Floats], Floats]:
    """What the pipeline of transformers applies to logits."""
    problem = config.get("problem_type")
    if problem == "regression":
        return _unchanged
    if problem == "multi_label_classification" or (labels == 1 and problem is None):
        return _sigmoid
    return _softmax
