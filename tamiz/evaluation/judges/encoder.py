"""The judge of encoders: how close the embeddings of texts are to those of the dense model.

    1 − cos  ≤  1 − min_cosine         in the mean over texts

Texts are pieces of the calibration's windows, between the tokens that begin and end a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tamiz.evaluation.judges.judge import (
    Figure,
    HeldOutText,
    Judge,
    Measure,
    Quality,
    evenly,
    share,
)
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.goal import Goal
from tamiz.system.cores import cores

if TYPE_CHECKING:
    from tamiz.runtime.embedding.encoder import Encoder

#: Tokens of a text.
_LENGTH = 128
#: Fewest texts that predictions of losses read.
_FEWEST = 4


class EncoderJudge(Judge):
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
    decodes = False
    writes_no_text = "a model without logits writes no text"

    def __init__(self, dense: Bundle, goal: Goal, text: HeldOutText, folder: Path) -> None:
        """See `Judge`."""
        self.goal = self.own_limits(goal)
        self._dense = _load(dense.path)
        self._texts = texts_of(text.windows, dense)
        self.windows, self.window_tokens = self._texts.shape

    @classmethod
    def is_for(cls, output: str) -> bool:
        """Whatever gives no logits."""
        return output != "logits"

    @classmethod
    def limit(cls, goal: Goal) -> float | None:
        """As 1 - cosine."""
        return None if goal.min_cosine is None else 1 - goal.min_cosine

    @classmethod
    def own_limits(cls, goal: Goal) -> Goal:
        """See `Judge`."""
        return replace(goal, max_dppl=None, max_kl=None)

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
    def reported(cls, loss: float) -> float | None:
        """As 1 - cosine."""
        return loss

    @classmethod
    def fitting_parts(
        cls, windows: Sequence[list[int]], dense: Bundle, most: Callable[[int], int]
    ) -> list[list[int]]:
        """Texts of the windows, as many as can be kept."""
        texts: list[list[int]] = texts_of(windows, dense).tolist()
        return evenly(texts, max(_FEWEST, most(len(texts[0]))))

    @cached_property
    def _expected(self) -> NDArray[np.float32]:
        from tamiz.evaluation.embeddings import read

        return read(self._dense.embeddings, self._texts, cores())

    def score(self, candidate: Path, exact: bool, progress: Callable[[int], None]) -> Quality:
        """See `Judge`."""
        from tamiz.evaluation.embeddings import cosines, read

        model = _load(candidate)
        of_texts = cosines(self._expected, read(model.embeddings, self._texts, cores(), progress))
        cosine, error = float(of_texts.mean()), None
        shown = [Figure("cosine", cosine)]
        if len(of_texts) > 1:
            error = float(of_texts.std(ddof=1) / len(of_texts) ** 0.5)
            shown.append(Figure("cosine_error", error))
        loss = 1 - cosine if math.isfinite(cosine) else math.inf
        limit = self.limit(self.goal)
        used = 0.0 if limit is None else share(loss, limit, exact)
        return Quality(loss, error, used, tuple(shown))

    @classmethod
    def headline(cls, gate: Any, trial: Any) -> tuple[str, str, str]:
        """See `Judge`."""
        note = f"mean over {gate.windows} texts of {gate.window_tokens} tokens"
        return f"{trial.cosine:.4f}", "cosine of embeddings", note

    @classmethod
    def limit_words(cls, gate: Any) -> list[str]:
        """See `Judge`."""
        return [] if gate.min_cosine is None else [f"cosine {gate.min_cosine:g}"]

    @classmethod
    def loss_words(cls, gate: Any, trial: Any) -> list[str]:
        """See `Judge`."""
        spread = "" if trial.cosine_error is None else f" ± {trial.cosine_error:.2g}"
        least = "" if gate.min_cosine is None else f", at least {gate.min_cosine:g} accepted"
        return [f"mean cosine of embeddings {trial.cosine:.4f}{spread}{least}"]

    @classmethod
    def missed_words(cls, trial: Any) -> tuple[list[str], str]:
        """See `Judge`."""
        losses = [] if trial.cosine is None else [f"{1 - trial.cosine:.2g} of cosine"]
        return losses, "lower --min-cosine"


def texts_of(windows: Sequence[list[int]], bundle: Bundle) -> NDArray[np.int64]:
    """Texts ``[texts, tokens]`` of one length.

    Args:
        windows: Tokens of a calibration's windows.
        bundle: The encoder, whose tokenizer says how a text begins and ends.
    """
    from tamiz.evaluation.windows import cut
    from tamiz.runtime.text.tokenizer import Tokenizer

    first, last = Tokenizer(bundle).ends()
    inner = min(_LENGTH, len(windows[0])) - len(first) - len(last)
    pieces = (piece for window in windows for piece in cut(window, len(window) // inner, inner))
    return np.array([[*first, *piece, *last] for piece in pieces], np.int64)


def _load(bundle: Path) -> Encoder:
    from tamiz.runtime.embedding.encoder import Encoder
    from tamiz.runtime.load import load_model

    model = load_model(bundle, threads=1)
    assert isinstance(model, Encoder)
    return model
