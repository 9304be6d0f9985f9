"""The judge of other models than decoders and encoders, such as classifiers and those of images.

It tells how close their outputs are to those of the dense model:

    mean loss over inputs + 2 standard errors  ≤  1 − min_cosine      of every output

Inputs are those of ``--sample``, else texts where the model reads them, else made up: noise of
several shapes, which no camera and no microphone gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tamiz.evaluation.judges.cosine import CosineJudge
from tamiz.evaluation.judges.encoder import passages_and_queries
from tamiz.evaluation.judges.judge import (
    DomainFigures,
    Figure,
    HeldOut,
    Measure,
    Quality,
    share,
    upper,
)
from tamiz.files.bundle import Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.goal import Goal
from tamiz.system.cores import cores

if TYPE_CHECKING:
    from tamiz.survey.survey import Survey


class OutputJudge(CosineJudge):
    """Measures what candidates of a model lose, as 1 - cosine of its outputs."""

    measures = (
        Measure(
            name="output_cosine",
            limit="min_cosine",
            label="cosine of outputs",
            title="mean cosine",
            axis="1 - mean cosine of outputs",
            predicted="1 - cosine",
            of_value=lambda value: 1 - value,
        ),
    )
    columns = (("cosine", "output_cosine"),)
    domain_columns = (("cosine", "cosine"),)
    predicts = False
    part, parts_read = "output", "inputs"

    def __init__(self, dense: Bundle, goal: Goal, held_out: HeldOut, folder: Path) -> None:
        """See `Judge`."""
        from tamiz.evaluation.output_losses import reads_texts, references

        self.goal = self.own_limits(goal)
        samples, texts = held_out.samples, {}
        if not samples and reads_texts(dense):
            texts = passages_and_queries(held_out.windows(), dense)
        found = references(dense, samples, texts.values(), cores(), held_out.vocabulary)
        if texts:
            self.read, self.windows = held_out.origin, sum(map(len, texts.values()))
            self.window_tokens = max(part.shape[1] for part in texts.values())
        else:
            self.read = "samples" if samples else "made-up inputs"
            self.windows, self.window_tokens = len(found), None
        if not found:
            raise TamizError("no valid input is known; give some with --sample")
        if found[0].is_drawn:
            raise TamizError("the dense model draws its outputs at random")
        self._references = found

    @classmethod
    def is_for(cls, survey: Survey) -> bool:
        """Every model."""
        return True

    @classmethod
    def applicable(cls, goal: Goal, model: Path) -> Goal:
        """Only a budget of cosines: no loss of a format is predicted."""
        if goal.points:
            raise TamizError(
                f"{model}: a frontier needs the logits of a decoder, found none; each 'tamiz build "
                "--min-cosine' shows one point"
            )
        others = {
            "max-dppl": goal.max_dppl if goal.min_cosine is None else None,
            "max-kl": goal.max_kl,
            "max-mb": goal.max_bytes,
            "min-tok-s": goal.min_tok_s,
        }
        for flag, given in others.items():
            if given is not None:
                raise TamizError(
                    f"{model}: --{flag} chooses formats by losses that are predicted on text for "
                    "decoders and encoders, found neither; use --min-cosine"
                )
        chosen = {
            "force": ",".join(goal.force),
            "allow": ",".join(name for name in goal.allow if name != "bits"),
            "prefer": goal.prefer if goal.prefer != Goal.prefer else "",
        }
        for flag, names in chosen.items():
            if names:
                raise TamizError(
                    f"{model}: --{flag}={names} needs a build that chooses formats, as those of "
                    "decoders and encoders do; use an option such as --block-quant"
                )
        return cls.own_limits(goal)

    @classmethod
    def fitting_parts(
        cls, windows: Sequence[list[int]], dense: Bundle, most: Callable[[int], int]
    ) -> list[list[int]]:
        """See `Judge`."""
        raise TamizError(f"{dense.path}: losses of formats are predicted of decoders and encoders")

    def score(self, candidate: Path, exact: bool, progress: Callable[[int], None]) -> Quality:
        """See `Judge`."""
        from tamiz.evaluation.output_losses import losses

        each = self.windows // len(self._references)
        lost = losses(self._references, candidate, cores(), lambda runs: progress(each * runs))
        return _quality(lost, self.limit(self.goal), exact)

    @classmethod
    def read_words(cls, gate: Any) -> str:
        """See `Judge`."""
        if gate.text == "samples":
            return f"{gate.windows} inputs of --sample"
        if gate.text == "made-up inputs":
            return f"{gate.windows} made-up inputs"
        return f"{gate.windows} texts of at most {gate.window_tokens} tokens"

    @classmethod
    def headline(cls, gate: Any, trial: Any) -> tuple[str, str, str]:
        """See `Judge`."""
        return (
            _number(trial.output_cosine),
            "cosine of outputs",
            f"mean over {cls.read_words(gate)}",
        )

    @classmethod
    def loss_words(cls, gate: Any, trial: Any) -> list[str]:
        """See `Judge`."""
        error = trial.output_cosine_error
        spread = "" if error is None else f" ± {error:.2g}"
        least = "" if gate.min_cosine is None else f", at least {gate.min_cosine:g} accepted"
        return [f"mean cosine of outputs {_number(trial.output_cosine)}{spread}{least}"]


def _quality(lost: Mapping[str, Sequence[float]], limit: float | None, exact: bool) -> Quality:
    """What losses by output, of each input, say of a limit: that of the worst output."""
    bounds = {name: _bound(lost[name]) for name in sorted(lost)}
    worst = max(bounds, key=lambda name: bounds[name][0])
    bound, mean, error = bounds[worst]
    shown = [Figure("output_cosine", 1 - mean)]
    if error is not None:
        shown.append(Figure("output_cosine_error", error))
    outputs = tuple(
        DomainFigures(name, len(lost[name]), (Figure("cosine", 1 - each),))
        for name, (_, each, _) in bounds.items()
    )
    used = 0.0 if limit is None else share(bound, limit, exact)
    return Quality(bound, error, used, tuple(shown), outputs)


def _bound(losses: Sequence[float]) -> tuple[float, float, float | None]:
    """The upper bound of a loss, its mean, and its standard error."""
    mean = float(np.mean(losses))
    if not math.isfinite(mean) or len(losses) == 1:
        return mean, mean, None
    error = float(np.std(losses, ddof=1) / len(losses) ** 0.5)
    return upper(mean, error), mean, error


def _number(cosine: float | None) -> str:
    return "not finite" if cosine is None else f"{cosine:.4f}"
