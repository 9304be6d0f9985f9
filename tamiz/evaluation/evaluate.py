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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluation.comparison import (
    LATE,
    Comparison,
    Perplexities,
    Row,
    comparison,
    mean_score,
)
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

#: A model may lose more than floats hold. Its loss is then infinite or NaN, without a warning.
_UNBOUNDED = np.errstate(over="ignore", invalid="ignore")

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


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
        return float(np.exp(mean_score(scores, row, start)))

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
    domains: Ids[str] | None = None,
) -> Comparison:
    """Both models over the same windows, position by position.

    Args:
        built: The built model.
        dense: The dense model's scores; the same vocabulary.
        windows: Token ids of each, see `cut`.
        steps: How the built model reads token by token as well; None for not at all.
        at_once: Windows to read side by side; for models of one thread each.
        progress: Takes the number of windows scored so far.
        domains: Name of each window's domain; None for a text of a single one.

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

    scores = _read(rows, windows, at_once, progress)
    return comparison(scores, None if steps is None else steps.start, domains)


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


def _padded(rows: Float64) -> Float64:
    """Rows of a built model that is read as a prompt only, with NaN for those of its steps."""
    return np.pad(rows, ((0, len(Row) - len(rows)), (0, 0)), constant_values=np.nan)


def _at_the_end(values: Float64, length: int) -> Float64:
    """The values of the last positions, with NaN before them."""
    return np.pad(values, (length - len(values), 0), constant_values=np.nan)
