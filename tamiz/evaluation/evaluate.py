"""Quality of a bundle on a text: perplexity, and its distance from the dense model.

The whole text is tokenised without BOS and cut into windows of 1,024 tokens that do not overlap.
In each of the first N windows every token but the first is scored, after those before it:

    nll_t = −log softmax(logits_{t−1})[token_t]           ppl = exp(mean nll)
    KL_t  = Σ_v p_dense(v) · (log p_dense(v) − log p_built(v))

Windows begin in the middle of a text without BOS, and a technique that acts on the first tokens of
a sequence can look better there than it is. `ppl_from_16` scores positions ≥ 16 only.

A window is read hundreds of tokens a run, as a prompt is. Some techniques act on steps of one token
only, and some lose more there, as a step builds on what the steps before it left in the state. So
a built model can be scored a second time, reading position 16 and all that follow token by token
(`ppl_decode`). `dppl` is the worst of the three.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Ids
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluation.windows import window_hash
from tamiz.files.errors import TamizError
from tamiz.runtime.model import Model
from tamiz.runtime.sequence import Logits

LATE = 16
#: Positions of a run, whose logits are in memory at a time; and of a comparison, which stays in the
#: cache.
_SLICE, _ROWS = 256, 4

#: Likeliest tokens that are compared, and tokens of a run; see `_likeliest`.
_LIKELIEST, _RUN = 10, 128

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


def evaluate(
    built: Model,
    dense: Model | None,
    windows: Ids[Ids[int]],
    decode: bool = False,
    at_once: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Quality on a text; the JSON of `tamiz eval`.

    Args:
        built: The model.
        dense: What to compare with, or None.
        windows: Of the text; see `read_windows`.
        decode: Whether to score token by token as well.
        at_once: Windows to read side by side; for models of one thread each.
        progress: Takes a sentence that says how far the scoring is.

    Raises:
        TamizError: The models have other vocabularies.
    """
    progress(f"{len(windows)} windows")

    def done(count: int) -> None:
        progress(f"{count} of {len(windows)} windows are scored")

    if dense is None:
        quality = perplexity(built, windows, decode, at_once, done)
        result: dict[str, Any] = {"ppl": quality.ppl, "ppl_from_16": quality.ppl_from_16}
        result["ppl_decode"] = quality.ppl_decode
    else:
        compared = compare(built, Reference(dense), windows, decode, at_once, done)
        result = {
            "ppl": compared.built.ppl,
            "ppl_from_16": compared.built.ppl_from_16,
            "ppl_decode": compared.built.ppl_decode,
            "ppl_dense": compared.dense.ppl,
            "ppl_from_16_dense": compared.dense.ppl_from_16,
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
class Quality:
    """Perplexity of a model on a text.

    Attributes:
        ppl: Over all scored positions.
        ppl_from_16: Over positions ≥ 16 of each window.
        ppl_decode: Over the same positions, read token by token; None if they were not.
    """

    ppl: float
    ppl_from_16: float
    ppl_decode: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A built model against dense.

    Attributes:
        built: Quality of the built model.
        dense: Quality of the dense model.
        kl_mean: Mean KL(dense‖built) of the scored positions, in nats.
        top1_agreement: Fraction of positions where both give the same likeliest token.
        kl_decode: `kl_mean` of positions ≥ 16, which the built model reads token by token.
        top1_agreement_decode: `top1_agreement` there.
        top10_recall_decode: Fraction of dense's 10 likeliest tokens there that are among the
            built model's 10.
        dppl_error: Standard error of ln(1 + Δppl) over windows; None for a single window.
        kl_error: Standard error of `kl_mean` over windows; None for a single window.
    """

    built: Quality
    dense: Quality
    kl_mean: float
    top1_agreement: float
    kl_decode: float | None = None
    top1_agreement_decode: float | None = None
    top10_recall_decode: float | None = None
    dppl_error: float | None = None
    kl_error: float | None = None

    @property
    def dppl(self) -> float:
        """How much worse the built model's perplexity is, as a fraction of dense's."""
        late = [self.built.ppl_from_16]
        if self.built.ppl_decode is not None:
            late.append(self.built.ppl_decode)
        return max(self.built.ppl / self.dense.ppl, max(late) / self.dense.ppl_from_16) - 1.0


def perplexity(
    model: Model,
    windows: Ids[Ids[int]],
    decode: bool = False,
    at_once: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Quality:
    """Perplexity over windows.

    Args:
        model: The model.
        windows: Token ids of each, see `cut`.
        decode: Whether to score token by token as well.
        at_once: Windows to read side by side; for a model of one thread.
        progress: Takes the number of windows scored so far.
    """

    def losses(window: Ids[int]) -> Float64:
        ways = [_prompt(model, window), *([_decode(model, window)] if decode else [])]
        blocks = [[nll for nll, _ in _scores(window, way)] for way in ways]
        return np.stack([np.concatenate(parts) for parts in blocks])

    every, late = _means(_read(losses, windows, at_once, progress))
    return Quality(
        float(np.exp(every[0])), float(np.exp(late[0])), float(np.exp(late[1])) if decode else None
    )


def _read(
    score: Callable[[Ids[int]], Float64],
    windows: Ids[Ids[int]],
    at_once: int,
    progress: Callable[[int], None],
) -> list[Float64]:
    """The scores of every window, in order."""
    scores = []
    with ThreadPoolExecutor(at_once) as pool:
        for rows in pool.map(score, windows):
            scores.append(rows)
            progress(len(scores))
    return scores


#: Scores of some positions: their nll ``[n]`` and all log p ``[n, V]``.
_Scores = tuple[Float64, Float32]
#: The same, and the 10 likeliest tokens ``[n, 10]``, the likeliest first.
_DenseScores = tuple[Float64, Float32, NDArray[np.intp]]


@dataclass(frozen=True)
class Reference:
    """The dense model's scores of windows that are read as prompts.

    Attributes:
        model: The dense model.
        folder: Folder that keeps log p, rounded to float16, if the file system has room. Each
            window then runs once, however often its scores are read.
    """

    model: Model
    folder: Path | None = None
    _kept: dict[tuple[int, ...], tuple[Path, list[tuple[Float64, NDArray[np.intp]]]]] = field(
        default_factory=dict
    )

    def scores(self, window: Ids[int]) -> Iterator[_DenseScores]:
        """Scores of all tokens of a window but the first, some positions at a time."""
        key = tuple(window)
        if key in self._kept:
            return self._load(*self._kept[key])
        needed = 2 * len(window) * self.model.vocabulary
        if self.folder is None or shutil.disk_usage(self.folder).free < 2 * needed:
            return self._run(window)
        file = self.folder / f"dense-{window_hash(window)[:16]}.float16"
        kept = []
        with file.open("wb") as stream:
            for nll, log_p, likely in self._run(window):
                stream.write(log_p.astype(np.float16).tobytes())
                kept.append((nll, likely))
        self._kept[key] = file, kept
        return self._load(file, kept)

    def _run(self, window: Ids[int]) -> Iterator[_DenseScores]:
        for nll, log_p in _scores(window, _prompt(self.model, window)):
            yield nll, log_p, _likeliest(log_p)

    def _load(
        self, file: Path, kept: Iterable[tuple[Float64, NDArray[np.intp]]]
    ) -> Iterator[_DenseScores]:
        with file.open("rb") as stream:
            for nll, likely in kept:
                rows = np.fromfile(stream, np.float16, len(nll) * self.model.vocabulary)
                yield nll, rows.reshape(len(nll), -1).astype(np.float32), likely


def compare(
    built: Model,
    dense: Reference,
    windows: Ids[Ids[int]],
    decode: bool = False,
    at_once: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> Comparison:
    """Both models over the same windows, position by position.

    Args:
        built: The built model.
        dense: The dense model's scores; the same vocabulary.
        windows: Token ids of each, see `cut`.
        decode: Whether to score the built model token by token as well.
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
        ways = [_prompt(built, window), *([_decode(built, window)] if decode else [])]
        all_scores = [dense.scores(window), *(_scores(window, way) for way in ways)]
        blocks = [_distances(*block) for block in zip(*all_scores, strict=True)]
        return np.concatenate(blocks, axis=1)

    scores = _read(rows, windows, at_once, progress)
    every, late = _means(scores)
    more = [row[1] - row[0] for row in scores]
    decoded = [float(mean) for mean in late[6:9]] if decode else [None] * 3
    return Comparison(
        Quality(
            float(np.exp(every[1])),
            float(np.exp(late[1])),
            float(np.exp(late[5])) if decode else None,
        ),
        Quality(float(np.exp(every[0])), float(np.exp(late[0]))),
        float(every[2]),
        float(every[3]),
        kl_decode=decoded[0],
        top1_agreement_decode=decoded[1],
        top10_recall_decode=decoded[2],
        dppl_error=_standard_error(more),
        kl_error=_standard_error([row[2] for row in scores]),
    )


def _standard_error(rows: Ids[Float64]) -> float | None:
    """Standard error of the mean over windows; None for a single window."""
    if len(rows) < 2:
        return None
    means = [float(row.mean()) for row in rows]
    return float(np.std(means, ddof=1) / np.sqrt(len(means)))


def _distances(dense: _DenseScores, *others: _Scores) -> Float64:
    """Rows of nll of dense; of each other its nll, KL, top-1 agreement and top-10 recall."""
    nll_dense, log_p_dense, likely = dense
    p_dense = np.exp(log_p_dense)
    rows = [nll_dense]
    for nll, log_p in others:
        divergence = np.einsum("nv,nv->n", p_dense, log_p_dense - log_p)
        built = _likeliest(log_p)
        agrees = built[:, 0] == likely[:, 0]
        recall = (likely[:, :, None] == built[:, None]).any(axis=2).mean(axis=1)
        rows += [nll, divergence, agrees, recall]
    return np.stack(rows).astype(np.float64)


def _likeliest(log_p: Float32) -> NDArray[np.intp]:
    """The 10 likeliest tokens of each row, the likeliest first, the lower id first where equal.

    They are among the runs of tokens with the largest maxima, which takes one pass to find.
    """
    n, vocabulary = log_p.shape
    starts = np.arange(0, vocabulary, _RUN)
    largest = np.maximum.reduceat(log_p, starts, axis=1)
    runs = np.sort(np.argsort(-largest, axis=1, kind="stable")[:, :_LIKELIEST], axis=1)
    tokens = (_RUN * runs[:, :, None] + np.arange(_RUN)).reshape(n, -1)
    values = np.take_along_axis(log_p, np.minimum(tokens, vocabulary - 1), axis=1)
    values[tokens >= vocabulary] = -np.inf
    count = min(_LIKELIEST, vocabulary)
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(tokens, order, axis=1)


def _means(rows: Ids[Float64]) -> tuple[Float64, Float64]:
    """Means of all positions and of positions ≥ 16, from ``[rows, positions]`` of each window.

    The first position of a window that is scored is 1.
    """
    late = [row[:, LATE - 1 :] for row in rows]
    return np.concatenate(rows, axis=1).mean(axis=1), np.concatenate(late, axis=1).mean(axis=1)


def _scores(window: Ids[int], blocks: Iterable[Logits]) -> Iterator[_Scores]:
    """Scores of the tokens of a window from the logits before them."""
    targets, start = np.array(window[1:]), 0
    for logits in blocks:
        # The sums are float64; rounded to float32 a log p of 10 has an error of 5e-7.
        log_p = logits - logits.max(axis=1, keepdims=True)
        sums = np.log(np.exp(log_p).sum(axis=1, dtype=np.float64))
        rows = np.arange(len(log_p))
        nll = sums - log_p[rows, targets[start + rows]]
        log_p -= sums[:, None].astype(np.float32)
        yield nll, log_p
        start += len(log_p)


def _prompt(model: Model, window: Ids[int]) -> Iterator[Logits]:
    """Logits of a window that is read as a prompt, some rows at a time."""
    context = window[:-1]
    sequence = model.sequence(len(context))
    for start in range(0, len(context), _SLICE):
        logits = sequence.logits(context[start : start + _SLICE])
        for row in range(0, len(logits), _ROWS):
            yield logits[row : row + _ROWS]


def _decode(model: Model, window: Ids[int]) -> Iterator[Logits]:
    """Logits of a window of which the tokens that predict positions ≥ 16 are read one by one."""
    context = window[:-1]
    sequence = model.sequence(len(context))
    prompt = sequence.logits(context[: LATE - 1]).copy()
    steps = (sequence.step(token).copy() for token in context[LATE - 1 :])
    rows = chain(prompt, steps)
    while block := list(islice(rows, _ROWS)):
        yield np.stack(block)


def log_softmax(logits: NDArray[np.floating[Any]]) -> Float64:
    """In float64, along the last axis."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted
