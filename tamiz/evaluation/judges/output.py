"""The judge of models that read no text: how close their outputs are to those of the dense model.

    loss of a row     ½ ‖y − ŷ‖² / ‖y‖²          1 − cosine where ŷ is as long as y
    loss of an output mean over rows, then over inputs
    loss + 2 standard errors  ≤  1 − min_cosine      of every output

A row is an output along its last axis. One of nearly nothing counts as one of a hundredth of the
usual length. Of integers the loss is the share that differs.

Inputs are those of ``--sample``, else made up: noise of several shapes, which no camera and no
microphone gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tamiz.evaluation.judges.cosine import CosineJudge
from tamiz.evaluation.judges.judge import (
    DomainFigures,
    Figure,
    HeldOut,
    Measure,
    Quality,
    UnmeasurableError,
    share,
    upper,
)
from tamiz.files.bundle import MODEL, Bundle
from tamiz.files.errors import TamizError
from tamiz.planning.goal import Goal

if TYPE_CHECKING:
    from tamiz.survey.survey import Survey

#: Inputs that are made up.
_DRAWS = 8
#: Least length of a row, as a share of the root mean square length of an output's rows.
_LEAST = 0.01


class OutputJudge(CosineJudge):
    """Measures what candidates of a model that reads no text lose, as 1 - cosine."""

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
    reads_text = False
    part, parts_read = "output", "inputs"

    def __init__(self, dense: Bundle, goal: Goal, held_out: HeldOut, folder: Path) -> None:
        """See `Judge`."""
        from tamiz.survey.self_check import Reference

        self.goal = self.own_limits(goal)
        samples = held_out.samples
        found = Reference.several(dense.model, _DRAWS, held_out.vocabulary, samples)
        if not found:
            raise UnmeasurableError("no valid input is known; give some with --sample")
        if found[0].is_drawn:
            raise UnmeasurableError("the dense model draws its outputs at random")
        self._references = found
        self.read = "samples" if samples else "made-up inputs"
        self.windows, self.window_tokens = len(found), None

    @classmethod
    def is_for(cls, survey: Survey) -> bool:
        """Whatever reads no tokens."""
        return not survey.reads_tokens

    @classmethod
    def applicable(cls, goal: Goal, model: Path) -> Goal:
        """Only a budget of cosines: no loss of a format is predicted without text."""
        if goal.points:
            raise TamizError(
                f"{model}: a frontier needs the logits of a decoder, found a model without "
                "input_ids; each 'tamiz build --min-cosine' shows one point"
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
                    f"{model}: --{flag} chooses formats by losses that are predicted on text, "
                    "found a model without input_ids; use --min-cosine"
                )
        chosen = {
            "force": ",".join(goal.force),
            "allow": ",".join(name for name in goal.allow if name != "bits"),
            "prefer": goal.prefer if goal.prefer != Goal.prefer else "",
        }
        for flag, names in chosen.items():
            if names:
                raise TamizError(
                    f"{model}: --{flag}={names} needs a build that chooses formats, found a model "
                    "without input_ids; use an option such as --block-quant"
                )
        return cls.own_limits(goal)

    @classmethod
    def fitting_parts(
        cls, windows: Sequence[list[int]], dense: Bundle, most: Callable[[int], int]
    ) -> list[list[int]]:
        """See `Judge`."""
        raise TamizError(f"{dense.path}: losses of formats cannot be predicted without input_ids")

    def score(self, candidate: Path, exact: bool, progress: Callable[[int], None]) -> Quality:
        """See `Judge`."""
        from tamiz.survey.whole_run import first_line, open_session, run_changed, tensors

        lost: dict[str, list[float]] = {}
        try:
            session = open_session(candidate / MODEL)
            for done, reference in enumerate(self._references, 1):
                found = run_changed(session, reference.feeds)
                for name in reference.outputs.keys() & found.keys():
                    pair = (tensors([outputs[name]]) for outputs in (reference.outputs, found))
                    lost.setdefault(name, []).append(loss_of(*pair))
                progress(done)
        except Exception as error:  # onnxruntime raises a class for every status
            raise TamizError(f"{candidate}: {first_line(error)}") from error
        return _quality(lost, self.limit(self.goal), exact)

    @classmethod
    def read_words(cls, gate: Any) -> str:
        """See `Judge`."""
        if gate.text == "samples":
            return f"{gate.windows} inputs of --sample"
        return f"{gate.windows} made-up inputs"

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


def loss_of(expected: Sequence[Any], found: Sequence[Any]) -> float:
    """What the tensors of an output lose: the largest loss of one; infinite for another shape."""
    if len(expected) != len(found):
        return math.inf
    return max((_loss(*pair) for pair in zip(expected, found, strict=True)), default=0.0)


def _loss(expected: Any, found: Any) -> float:
    """The mean loss of the rows of a tensor; those that are not finite in `expected` are left
    out."""
    if expected.shape != found.shape:
        return math.inf
    if expected.dtype.kind not in "fc":
        return float(np.mean(expected != found)) if expected.size else 0.0
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    size = expected.shape[-1] if expected.ndim else 1
    y, other = (v.astype(wide).reshape(-1, size) for v in (expected, found))
    known = np.isfinite(y).all(axis=1)
    y, other = y[known], other[known]
    if not y.size:
        return 0.0
    if not np.isfinite(other).all():
        return math.inf
    squares, errors = ((np.abs(v) ** 2).sum(axis=1) for v in (y, y - other))
    least = _LEAST**2 * squares.mean()
    if least == 0:
        return float(errors.any())
    return float((errors / np.maximum(squares, least)).mean() / 2)


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
