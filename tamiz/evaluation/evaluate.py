"""Quality of a bundle on a text: perplexity, and its distance from the dense model.

The whole text is tokenised without BOS and cut into windows of 1,024 tokens that do not overlap.
In each of the first N windows every token but the first is scored, after those before it:

    nll_t = −log softmax(logits_{t−1})[token_t]           ppl = exp(mean nll)
    KL_t  = Σ_v p_dense(v) · (log p_dense(v) − log p_built(v))

Windows begin in the middle of a text without BOS, and a technique that acts on the first tokens of
a sequence can look better there than it is. `ppl_from_16` scores positions ≥ 16 only.

A window is read hundreds of tokens a run, as a prompt is. Some techniques act on steps of one token
only, and some lose more there, as a step builds on what the steps before it left in the state. So
a built model can be scored a second time, reading a position and all that follow token by token
(`ppl_decode`): position 16, or a late one where the loss of long contexts counts. `dppl` is the
worst of three, where D is the set of positions that are read both ways:

    ppl / ppl_dense − 1
    ppl_from_16 / ppl_from_16_dense − 1
    ppl_from_16 / ppl_from_16_dense · exp(mean over D of nll by steps − nll as a prompt) − 1
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Ids
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluation.scores import (
    DenseReference,
    DenseScores,
    Reading,
    Scores,
    Steps,
    likeliest,
    score,
)
from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model

#: First position that does not count as early.
LATE = 16
#: A model may lose more than floats hold. Its loss is then infinite or NaN, without a warning.
_UNBOUNDED = np.errstate(over="ignore", invalid="ignore")

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


class _Row(IntEnum):
    """Rows of `_distances`; those of steps follow those of a prompt."""

    NLL_DENSE = 0
    NLL = 1
    KL = 2
    TOP1 = 3
    RECALL = 4
    NLL_STEPS = 5
    KL_STEPS = 6
    TOP1_STEPS = 7
    RECALL_STEPS = 8


def steps_of(rows: int | None, start: int = LATE) -> Steps | None:
    """How a model is scored token by token as well.

    Args:
        rows: Tokens of a step, see `tamiz.planning.choice.step_rows`; None for no steps.
        start: First position that is read in steps, from `LATE` on.
    """
    return Steps(max(LATE, start), rows) if rows else None


def evaluate(
    built: Model,
    dense: Model | None,
    windows: Ids[Ids[int]],
    steps: Steps | None = None,
    at_once: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Quality on a text; the JSON of `tamiz eval`.

    Args:
        built: The model.
        dense: What to compare with, or None.
        windows: Of the text; see `read_windows`.
        steps: How to score token by token as well; None for not at all.
        at_once: Windows to read side by side; for models of one thread each.
        progress: Takes a sentence that says how far the scoring is.

    Raises:
        TamizError: The models have other vocabularies.
    """
    progress(f"{len(windows)} windows")

    def done(count: int) -> None:
        progress(f"{count} of {len(windows)} windows are scored")

    if dense is None:
        quality = perplexity(built, windows, steps, at_once, done)
        result: dict[str, Any] = {"ppl": quality.ppl, "ppl_from_16": quality.ppl_from_16}
        result["ppl_decode"] = quality.ppl_decode
    else:
        compared = compare(built, DenseReference(dense), windows, steps, at_once, done)
        result = {
            "ppl": compared.built.ppl,
            "ppl_from_16": compared.built.ppl_from_16,
            "ppl_decode": compared.built.ppl_decode,
            "ppl_dense": compared.dense.ppl,
            "ppl_from_16_dense": compared.dense.ppl_from_16,
            "ppl_decode_dense": compared.dense.ppl_decode,
            "dppl": compared.dppl,
            "dppl_error": compared.dppl_error,
            "kl_mean": compared.kl_mean,
            "kl_error": compared.kl_error,
            "kl_decode": compared.kl_decode,
            "top1_agreement": compared.top1_agreement,
            "top1_agreement_decode": compared.top1_agreement_decode,
            "top10_recall_decode": compared.top10_recall_decode,
        }
    measured = {name: value for name, value in result.items() if value is not None}
    return {**measured, "windows": len(windows)}


@dataclass(frozen=True)
class Perplexities:
    """Perplexity of a model on a text.

    Attributes:
        ppl: Over all scored positions.
        ppl_from_16: Over positions ≥ 16 of each window.
        ppl_decode: Over the positions that are read token by token; None if none are. Of dense,
            which reads prompts only: over the same positions.
    """

    ppl: float
    ppl_from_16: float
    ppl_decode: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A built model against dense.

    Attributes:
        built: Of the built model.
        dense: Of the dense model.
        dppl: How much worse the built model's perplexity is, as a fraction of dense's; see above.
        kl_mean: Mean KL(dense‖built) of the scored positions, in nats.
        top1_agreement: Fraction of positions where both give the same likeliest token.
        kl_decode: `kl_mean` of a model that reads in steps: from position 16 on as a prompt, and
            what steps add to it in the positions that are read both ways.
        top1_agreement_decode: `top1_agreement` there.
        top10_recall_decode: Fraction of dense's 10 likeliest tokens there that are among the
            built model's 10.
        dppl_error: Standard error of ln(1 + `dppl`) over windows; None for a single window.
        kl_error: Standard error over windows of the larger of `kl_mean` and `kl_decode`; None for a
            single window.
    """

    built: Perplexities
    dense: Perplexities
    dppl: float
    kl_mean: float
    top1_agreement: float
    kl_decode: float | None = None
    top1_agreement_decode: float | None = None
    top10_recall_decode: float | None = None
    dppl_error: float | None = None
    kl_error: float | None = None

    @property
    def divergence(self) -> float:
        """The larger KL divergence, of prompts or of decode steps where these were taken."""
        return self.kl_mean if self.kl_decode is None else max(self.kl_mean, self.kl_decode)


@_UNBOUNDED
def perplexity(
    model: Model,
    windows: Ids[Ids[int]],
    steps: Steps | None = None,
    at_once: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Perplexities:
    """Perplexity over windows.

    Args:
        model: The model.
        windows: Token ids of each, see `cut`.
        steps: How to score token by token as well; None for not at all.
        at_once: Windows to read side by side; for a model of one thread.
        progress: Takes the number of windows scored so far.
    """

    def losses(window: Ids[int]) -> Float64:
        reading = Reading(model, window, steps)
        found = [np.concatenate([nll for nll, _ in score(window, reading.prompt())])]
        if steps is not None:
            parts = score(window, reading.stepped(), steps.first_row)
            found.append(_at_the_end(np.concatenate([nll for nll, _ in parts]), len(found[0])))
        return np.stack(found)

    scores = _read(losses, windows, at_once, progress)

    def ppl(row: int, start: int) -> float:
        return float(np.exp(_mean(scores, row, start)))

    return Perplexities(ppl(0, 1), ppl(0, LATE), None if steps is None else ppl(1, steps.start))


def _read(
    scored: Callable[[Ids[int]], Float64],
    windows: Ids[Ids[int]],
    at_once: int,
    progress: Callable[[int], None],
) -> list[Float64]:
    """The scores of every window, in order."""
    scores = []
    with ThreadPoolExecutor(at_once) as pool:
        for rows in pool.map(scored, windows):
            scores.append(rows)
            progress(len(scores))
    return scores


@_UNBOUNDED
def compare(
    built: Model,
    dense: DenseReference,
    windows: Ids[Ids[int]],
    steps: Steps | None = None,
    at_once: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Comparison:
    """Both models over the same windows, position by position.

    Args:
        built: The built model.
        dense: The dense model's scores; the same vocabulary.
        windows: Token ids of each, see `cut`.
        steps: How the built model reads token by token as well; None for not at all.
        at_once: Windows to read side by side; for models of one thread each.
        progress: Takes the number of windows scored so far.

    Raises:
        TamizError: The vocabularies differ.
    """
    if built.vocabulary != dense.model.vocabulary:
        raise TamizError(
            f"{built.bundle.path}: has {built.vocabulary} logits, but {dense.model.bundle.path} has"
            f" {dense.model.vocabulary}, so they cannot be compared"
        )

    def rows(window: Ids[int]) -> Float64:
        reading, first = Reading(built, window, steps), len(window)
        stepped: Iterator[Scores] = iter(())
        if steps is not None:
            first = steps.first_row
            stepped = score(window, reading.stepped(), first)
        prompt = score(window, reading.prompt())
        blocks: list[Float64] = []
        at = 0
        for of_dense, of_prompt in zip(dense.scores(window), prompt, strict=True):
            others = [of_prompt, next(stepped)] if at >= first else [of_prompt]
            blocks.append(_padded(_distances(of_dense, *others)))
            at += blocks[-1].shape[1]
        return np.concatenate(blocks, axis=1)

    return _comparison(_read(rows, windows, at_once, progress), steps)


def _comparison(scores: Ids[Float64], steps: Steps | None) -> Comparison:
    """What the rows of all windows say in the mean."""

    def mean(row: _Row, start: int) -> float:
        return _mean(scores, row, start)

    def ppl(row: _Row, start: int) -> float:
        return float(np.exp(mean(row, start)))

    start = None if steps is None else steps.start
    lost = [(r[_Row.NLL] - r[_Row.NLL_DENSE], r[_Row.NLL_STEPS] - r[_Row.NLL]) for r in scores]
    lost_by_way = _by_way(lost, start)
    diverged = _by_way([(r[_Row.KL], r[_Row.KL_STEPS] - r[_Row.KL]) for r in scores], start)[:, ::2]
    worst, diverging = lost_by_way.mean(axis=0).argmax(), diverged.mean(axis=0).argmax()

    def of_steps(value: Callable[[_Row, int], float], row: _Row) -> float | None:
        return None if start is None else value(row, start)

    dense = Perplexities(
        ppl(_Row.NLL_DENSE, 1), ppl(_Row.NLL_DENSE, LATE), of_steps(ppl, _Row.NLL_DENSE)
    )
    return Comparison(
        built=Perplexities(ppl(_Row.NLL, 1), ppl(_Row.NLL, LATE), of_steps(ppl, _Row.NLL_STEPS)),
        dense=dense,
        dppl=float(np.expm1(lost_by_way[:, worst].mean())),
        kl_mean=mean(_Row.KL, 1),
        top1_agreement=mean(_Row.TOP1, 1),
        kl_decode=None if start is None else float(diverged[:, 1].mean()),
        top1_agreement_decode=of_steps(mean, _Row.TOP1_STEPS),
        top10_recall_decode=of_steps(mean, _Row.RECALL_STEPS),
        dppl_error=_standard_error(lost_by_way[:, worst]),
        kl_error=_standard_error(diverged[:, diverging]),
    )


def _by_way(rows: Ids[tuple[Float64, Float64]], start: int | None) -> Float64:
    """What a model loses in every window ``[windows, ways]`` by way of reading: as a prompt, as a
    prompt from position 16 on, and in steps.

    A step loses what a prompt loses from position 16 on, and what it loses more in the positions
    that are read both ways. This difference varies little, so few steps suffice.

    Args:
        rows: Of every window: what is lost as a prompt, and how much more in steps, by position.
        start: First position that is read in steps; None if none is.
    """
    found = []
    for prompt, more in rows:
        late = prompt[LATE - 1 :].mean()
        steps = [] if start is None else [late + more[start - 1 :].mean()]
        found.append([prompt.mean(), late, *steps])
    return np.array(found)


def _standard_error(values: Float64) -> float | None:
    """Standard error of the mean of some numbers; None for a single one."""
    return None if len(values) < 2 else float(np.std(values, ddof=1) / np.sqrt(len(values)))


def _distances(dense: DenseScores, *others: Scores) -> Float64:
    """Rows of nll of dense; of each other its nll, KL, top-1 agreement and top-10 recall."""
    nll_dense, log_p_dense, likely = dense
    p_dense = np.exp(log_p_dense)
    rows = [nll_dense]
    for nll, log_p in others:
        # A token that dense never writes counts as 0, also where log p is minus infinity.
        apart = np.zeros_like(log_p)
        np.subtract(log_p_dense, log_p, out=apart, where=p_dense > 0)
        divergence = np.einsum("nv,nv->n", p_dense, apart)
        built = likeliest(log_p)
        agrees = built[:, 0] == likely[:, 0]
        recall = (likely[:, :, None] == built[:, None]).any(axis=2).mean(axis=1)
        rows += [nll, divergence, agrees, recall]
    return np.stack(rows).astype(np.float64)


def _mean(scores: Ids[Float64], row: int, start: int) -> float:
    """Mean of one of the rows ``[rows, positions]`` of all windows from a position on.

    The first position of a window that is scored is 1.
    """
    return float(np.concatenate([rows[row, start - 1 :] for rows in scores]).mean())


def _padded(rows: Float64) -> Float64:
    """Rows of a built model that is read as a prompt only, with NaN for those of its steps."""
    return np.pad(rows, ((0, len(_Row) - len(rows)), (0, 0)), constant_values=np.nan)


def _at_the_end(values: Float64, length: int) -> Float64:
    """The values of the last positions, with NaN before them."""
    return np.pad(values, (length - len(values), 0), constant_values=np.nan)


def log_softmax(logits: NDArray[np.floating[Any]]) -> Float64:
    """In float64, along the last axis."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted
