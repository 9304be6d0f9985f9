"""The judge of encoders: how close the embeddings of texts are to those of the dense model.

    1 − cos + 2 standard errors  ≤  1 − min_cosine         in the mean over domains
    1 − cos of each domain       ≤  2 (1 − min_cosine)

Texts are pieces of windows, between the tokens that begin and end a text: passages of 128 tokens.
Short pieces of 16 tokens, as queries are, make up a domain of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluation.judges.cosine import CosineJudge
from tamiz.evaluation.judges.judge import (
    DomainFigures,
    Figure,
    HeldOut,
    Measure,
    Quality,
    evenly,
    share,
    upper,
)
from tamiz.evaluation.windows import Window
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.goal import Goal
from tamiz.system.cores import cores

if TYPE_CHECKING:
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.survey.survey import Survey

#: Tokens of a passage, and of a query.
_LENGTH, _QUERY = 128, 16
#: The name of the domain of queries.
_QUERIES = "queries"
#: Fewest texts that predictions of losses read.
_FEWEST = 4


class EncoderJudge(CosineJudge):
    """Measures what candidates of an encoder lose, as 1 - cosine."""

    measures = (
        Measure(
            name="cosine",
            limit="min_cosine",
            label="cosine",
            title="mean cosine",
            axis="1 - mean cosine of embeddings",
            predicted="1 - cosine",
            of_value=lambda value: 1 - value,
        ),
    )
    columns = (("cosine", "cosine"),)
    domain_columns = (("cosine", "cosine"),)
    recipe = "embed"

    def __init__(self, dense: Bundle, goal: Goal, held_out: HeldOut, folder: Path) -> None:
        """See `Judge`."""
        self.goal = self.own_limits(goal)
        self._dense = _load(dense.path)
        self._texts = passages_and_queries(held_out.windows(), dense)
        sizes = [texts.shape for name, texts in self._texts.items() if name != _QUERIES]
        self.read = held_out.origin
        self.windows, self.window_tokens = sum(count for count, _ in sizes), sizes[0][1]

    @classmethod
    def is_for(cls, survey: Survey) -> bool:
        """See `Judge`."""
        return survey.embeds

    @classmethod
    def applicable(cls, goal: Goal, model: Path) -> Goal:
        """See `Judge`."""
        if goal.points:
            raise TamizError(
                f"{model}: a frontier needs the logits of a decoder, found none; each 'tamiz build "
                "--min-cosine' or --max-mb shows one point"
            )
        if goal.min_cosine is not None:
            goal = replace(goal, max_dppl=None)
        others = {"max-dppl": goal.max_dppl, "max-kl": goal.max_kl, "min-tok-s": goal.min_tok_s}
        for flag, given in others.items():
            if given is not None:
                raise TamizError(
                    f"{model}: --{flag} needs the logits of a decoder, found none; use "
                    "--min-cosine or --max-mb"
                )
        if acting := {*goal.allow, *goal.force} - {"bits"}:
            raise TamizError(
                f"{model}: of an encoder a build within limits chooses weight formats only, found "
                f"{', '.join(sorted(acting))} in --allow or --force; expected bits"
            )
        # No speed is predicted for many rows: in all formats they take about the same time.
        return replace(goal, prefer="size") if goal.prefer == "speed" else goal

    @classmethod
    def fitting_parts(
        cls, windows: Sequence[list[int]], dense: Bundle, most: Callable[[int], int]
    ) -> list[list[int]]:
        """Texts of the windows, as many as can be kept."""
        texts: list[list[int]] = texts_of(windows, dense).tolist()
        return evenly(texts, max(_FEWEST, most(len(texts[0]))))

    @cached_property
    def _expected(self) -> dict[str, NDArray[np.float32]]:
        from tamiz.evaluation.embeddings import read

        texts = self._texts.items()
        return {name: read(self._dense.embeddings, part, cores()) for name, part in texts}

    def score(self, candidate: Path, exact: bool, progress: Callable[[int], None]) -> Quality:
        """See `Judge`."""
        from tamiz.evaluation.embeddings import cosines, read

        model, done = _load(candidate), 0
        lost: dict[str, NDArray[np.float64]] = {}
        for name, part in self._texts.items():
            lost[name] = 1 - cosines(self._expected[name], read(model.embeddings, part, cores()))
            done = min(self.windows, done + len(part))
            progress(done)
        return _quality(lost, self.limit(self.goal), exact)

    @classmethod
    def headline(cls, gate: Any, trial: Any) -> tuple[str, str, str]:
        """See `Judge`."""
        note = f"mean over {gate.windows} passages of {gate.window_tokens} tokens and queries"
        return f"{trial.cosine:.4f}", "cosine of embeddings", note

    @classmethod
    def loss_words(cls, gate: Any, trial: Any) -> list[str]:
        """See `Judge`."""
        spread = "" if trial.cosine_error is None else f" ± {trial.cosine_error:.2g}"
        least = "" if gate.min_cosine is None else f", at least {gate.min_cosine:g} accepted"
        return [f"mean cosine of embeddings {trial.cosine:.4f}{spread}{least}"]


def _quality(lost: Mapping[str, NDArray[np.float64]], limit: float | None, exact: bool) -> Quality:
    """What losses of texts by domain say of a limit."""
    means = np.array([values.mean() for values in lost.values()])
    values = means if len(means) > 2 else np.concatenate(list(lost.values()))
    mean = float(means.mean())
    error = float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else None
    bound = upper(mean, error, means.tolist()) if math.isfinite(mean) else math.inf
    shown = [Figure("cosine", 1 - mean)]
    if error is not None:
        shown.append(Figure("cosine_error", error))
    domains = tuple(
        DomainFigures(name, len(lost[name]), (Figure("cosine", float(1 - each)),))
        for name, each in zip(lost, means, strict=True)
    )
    used = 0.0 if limit is None else share(bound, limit, exact)
    return Quality(bound, error, used, tuple(shown), domains)


def passages_and_queries(windows: Sequence[Window], bundle: Bundle) -> dict[str, NDArray[np.int64]]:
    """Texts ``[texts, tokens]``: passages of each domain, and as many queries of all of them.

    Args:
        windows: The windows.
        bundle: The encoder, whose tokenizer says how a text begins and ends.
    """
    found, queries = {}, []
    for name in dict.fromkeys(window.origin for window in windows):
        tokens = [list(window.tokens) for window in windows if window.origin == name]
        found[name] = texts_of(tokens, bundle)
        short = texts_of(tokens, bundle, _QUERY)
        queries.append(short[:: max(1, len(short) // len(found[name]))])
    return {**found, _QUERIES: np.concatenate(queries)}


def texts_of(
    windows: Sequence[list[int]], bundle: Bundle, length: int = _LENGTH
) -> NDArray[np.int64]:
    """Texts ``[texts, tokens]`` of one length.

    Args:
        windows: Tokens of windows.
        bundle: The encoder, whose tokenizer says how a text begins and ends.
        length: Tokens of a text; fewer where windows have fewer.
    """
    from tamiz.evaluation.windows import cut
    from tamiz.runtime.text.tokenizer import Tokenizer

    first, last = Tokenizer(bundle).ends()
    inner = min(length, len(windows[0])) - len(first) - len(last)
    pieces = (piece for window in windows for piece in cut(window, len(window) // inner, inner))
    return np.array([[*first, *piece, *last] for piece in pieces], np.int64)


def _load(bundle: Path) -> Encoder:
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.load import load_model

    model = load_model(bundle, threads=1)
    assert isinstance(model, Encoder)
    return model
