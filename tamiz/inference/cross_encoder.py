"""A classifier of texts or of pairs: scores of passages for a query, probabilities of labels."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamiz.files.errors import TamizError
from tamiz.inference.closing import Closing
from tamiz.inference.pair_format import pair_format
from tamiz.inference.text_batches import Progress, TextSpeed, in_batches
from tamiz.runtime.embedding.classifier import Classifier
from tamiz.runtime.embedding.settings import PROMPTS, read_settings
from tamiz.runtime.load import load_model
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
        prompts: What may be put before a pair, by name.
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
        self._ends = self.tokenizer.ends()
        bundle = classifier.bundle
        self._settings = read_settings(bundle)
        self._pairs = pair_format(bundle, self.tokenizer, self._settings, context)
        self.context, self.prompts = self._pairs.context, dict(self._settings.prompts)
        config = bundle.json("config.json")
        given = bundle.json(PROMPTS) if PROMPTS in bundle.manifest.files else {}
        self._scores = _scores_of(config, given, classifier.count)
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
        prompt_name: str | None = None,
        prompt: str | None = None,
        progress: Progress | None = None,
    ) -> Floats:
        """How well each text answers a query, as ``CrossEncoder.predict`` of sentence-transformers.

        Scores pass through the activation that the files name; without one through a sigmoid.

        Args:
            query: The query.
            texts: The texts.
            batch_size: Texts of a run.
            prompt_name: Name of the prompt, such as an instruction, that is put before each pair;
                None for the model's default.
            prompt: What to put before each pair instead. A model that reads pairs as messages gets
                it as a message of the role system.
            progress: Called with the texts that are done and their number in all.

        Returns:
            ``[texts]``; the largest is the best.

        Raises:
            TamizError: The model has several labels, a text cannot be tokenised, there is no such
                prompt, or `batch_size` is below 1.
        """
        if prompt_name is not None and prompt is not None:
            raise TypeError("'prompt_name' and 'prompt' exclude each other")
        if len(self.labels) != 1:
            raise TamizError(
                f"the model has {len(self.labels)} labels ({', '.join(self.labels)}), expected one"
                " score; try classify"
            )
        pairs = [(query, text) for text in texts]
        before = self._settings.prompt(prompt_name) if prompt is None else prompt
        found: Floats = self._scores(self.logits(pairs, batch_size, progress, before))[:, 0]
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
        self,
        texts: Sequence[Text],
        batch_size: int = 32,
        progress: Progress | None = None,
        prompt: str = "",
    ) -> Floats:
        """Logits ``[texts, labels]``; see `classify` and `rerank`."""
        if self._classifier is None:
            raise TamizError("the model is closed, expected one that is open; try tamiz.load")
        rows = [self.encode(text, prompt) for text in texts]
        found = np.zeros((len(rows), len(self.labels)), np.float32)
        self.speed = TextSpeed()
        lengths = [len(ids) for ids, _ in rows]
        for chosen in in_batches(lengths, batch_size, progress, self.speed):
            ids, kinds = zip(*(rows[number] for number in chosen), strict=True)
            found[chosen] = self._classifier.logits(ids, kinds)
        return found

    def encode(self, text: Text, prompt: str = "") -> tuple[list[int], list[int]]:
        """Token ids of a text or a pair, cut to `context`, and the kind of each.

        Args:
            text: The text or the pair.
            prompt: What is put before a pair.

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
        return self._pairs.encode(*text, prompt)

    def count_tokens(self, text: Text) -> int:
        """Tokens of a text or a pair with those around it; of a long one, before it is cut."""
        if isinstance(text, str):
            first, last = self._ends
            return len(first) + len(self.tokenizer.encode(text, bos=False)) + len(last)
        return self._pairs.count(*text, "")

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


def _scores_of(
    config: dict[str, Any], settings: dict[str, Any], labels: int
) -> Callable[[Floats], Floats]:
    """What sentence-transformers applies to logits: as the files say, else a sigmoid of one.

    Args:
        config: The contents of config.json.
        settings: Those of config_sentence_transformers.json, where newer versions write it.
        labels: Number of labels.

    Raises:
        TamizError: They name another function than those that are known.
    """
    own = config.get("sentence_transformers")
    name = settings.get("activation_fn")
    name = name or (own.get("activation_fn") if isinstance(own, dict) else None)
    name = name or config.get("sbert_ce_default_activation_function")
    if name is None:
        return _sigmoid if labels == 1 else _unchanged
    if name not in _ACTIVATIONS:
        raise TamizError(
            f"the model's activation_fn is {name!r}, expected one of {', '.join(_ACTIVATIONS)}"
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
