"""Quality of a bundle on a text: perplexity, and its distance from the dense model.

The whole text is tokenised without BOS and cut into windows of 1,024 tokens that do not overlap.
In each of the first N windows every token but the first is scored, after those before it:

    nll_t = −log softmax(logits_{t−1})[token_t]           ppl = exp(mean nll)
    KL_t  = Σ_v p_dense(v) · (log p_dense(v) − log p_built(v))

Windows begin in the middle of a text without BOS, and a technique that acts on the first tokens of
a sequence can look better there than it is. `ppl_from_16` scores positions ≥ 16 only, and `dppl`
is the worse of the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.errors import TamizError
from tamiz.runtime import Model
from tamiz.tokenizer import Tokenizer

WINDOW = 1024
LATE = 16
#: Positions of a run, whose logits are in memory at a time; and of a float64 computation.
_SLICE, _ROWS = 256, 8

Float64 = NDArray[np.float64]


def evaluate(
    built: Model,
    dense: Model | None,
    text: str,
    windows: int,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Quality on a text; the JSON of `tamiz eval`.

    Args:
        built: The model; its tokenizer reads the text.
        dense: What to compare with, or None.
        text: The text.
        windows: Number of windows.
        tell: Called with what is scored next.

    Raises:
        TamizError: The text is too short, or the models have other vocabularies.
    """
    cuts = cut(Tokenizer(built.bundle).encode(text, bos=False), windows)

    def announced() -> Iterator[list[int]]:
        for number, window in enumerate(cuts, 1):
            tell(f"window {number} of {windows}")
            yield window

    if dense is None:
        quality = perplexity(built, announced())
        return {"ppl": quality.ppl, "ppl_from_16": quality.ppl_from_16, "windows": windows}
    result = compare(built, dense, announced())
    return {
        "ppl": result.built.ppl,
        "ppl_from_16": result.built.ppl_from_16,
        "ppl_dense": result.dense.ppl,
        "ppl_from_16_dense": result.dense.ppl_from_16,
        "dppl": result.dppl,
        "kl_mean": result.kl_mean,
        "top1_agreement": result.top1_agreement,
        "windows": windows,
    }


@dataclass(frozen=True)
class Quality:
    """Perplexity of a model on a text.

    Attributes:
        ppl: Over all scored positions.
        ppl_from_16: Over positions ≥ 16 of each window.
    """

    ppl: float
    ppl_from_16: float


@dataclass(frozen=True)
class Comparison:
    """A built model against dense.

    Attributes:
        built: Quality of the built model.
        dense: Quality of the dense model.
        kl_mean: Mean KL(dense‖built) of the scored positions, in nats.
        top1_agreement: Fraction of positions where both give the same likeliest token.
    """

    built: Quality
    dense: Quality
    kl_mean: float
    top1_agreement: float

    @property
    def dppl(self) -> float:
        """How much worse the built model's perplexity is, as a fraction of dense's."""
        everywhere = self.built.ppl / self.dense.ppl
        late = self.built.ppl_from_16 / self.dense.ppl_from_16
        return max(everywhere, late) - 1.0


def cut(ids: Sequence[int], windows: int, window: int = WINDOW) -> list[list[int]]:
    """The first windows of a tokenised text.

    Raises:
        TamizError: The text is too short.
    """
    if len(ids) < windows * window:
        raise TamizError(
            f"the text has {len(ids)} tokens, expected at least {windows * window}"
            f" ({windows} windows of {window})"
        )
    return [list(ids[start : start + window]) for start in range(0, windows * window, window)]


def perplexity(model: Model, windows: Iterable[Sequence[int]]) -> Quality:
    """Perplexity over windows.

    Args:
        model: The model.
        windows: Token ids of each, see `cut`.
    """
    losses = []
    for window in windows:
        losses.append(np.concatenate([nll for nll, _ in _scores(model, window)]))
    return _quality(losses)


def compare(
    built: Model,
    dense: Model,
    windows: Iterable[Sequence[int]],
) -> Comparison:
    """Both models over the same windows, position by position.

    Args:
        built: The built model.
        dense: The dense model, of the same vocabulary.
        windows: Token ids of each, see `cut`.

    Raises:
        TamizError: The vocabularies differ.
    """
    if built.vocabulary != dense.vocabulary:
        raise TamizError(
            f"{built.bundle.path}: has {built.vocabulary} logits, but {dense.bundle.path} has"
            f" {dense.vocabulary}, so they cannot be compared"
        )
    losses: list[Float64] = []
    losses_dense: list[Float64] = []
    divergences: list[Float64] = []
    agreements: list[NDArray[np.bool_]] = []
    for window in windows:
        pairs = zip(_scores(built, window), _scores(dense, window), strict=True)
        nll: list[Float64] = []
        nll_dense: list[Float64] = []
        for (part, log_p), (part_dense, log_p_dense) in pairs:
            nll.append(part)
            nll_dense.append(part_dense)
            divergences.append((np.exp(log_p_dense) * (log_p_dense - log_p)).sum(axis=1))
            agreements.append(log_p.argmax(axis=1) == log_p_dense.argmax(axis=1))
        losses.append(np.concatenate(nll))
        losses_dense.append(np.concatenate(nll_dense))
    return Comparison(
        _quality(losses),
        _quality(losses_dense),
        float(np.concatenate(divergences).mean()),
        float(np.concatenate(agreements).mean()),
    )


def _scores(model: Model, window: Sequence[int]) -> Iterator[tuple[Float64, Float64]]:
    """For some scored positions at a time: their nll ``[n]`` and all log p ``[n, V]``."""
    context, targets = window[:-1], np.array(window[1:])
    sequence = model.sequence(len(context))
    for start in range(0, len(context), _SLICE):
        logits = sequence.logits(context[start : start + _SLICE])
        for row in range(0, len(logits), _ROWS):
            log_p = log_softmax(logits[row : row + _ROWS])
            rows = np.arange(len(log_p))
            yield -log_p[rows, targets[start + row + rows]], log_p


def log_softmax(logits: NDArray[np.floating[Any]]) -> Float64:
    """In float64, along the last axis."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted


def _quality(losses: Sequence[Float64]) -> Quality:
    """From the nll of each window; the first of a window belongs to its position 1."""
    late = [nll[LATE - 1 :] for nll in losses]
    return Quality(
        float(np.exp(np.concatenate(losses).mean())), float(np.exp(np.concatenate(late).mean()))
    )
