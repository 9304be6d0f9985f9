"""The judges: one module for each kind of model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tamiz.evaluation.judges.decoder import DecoderJudge
from tamiz.evaluation.judges.encoder import EncoderJudge
from tamiz.evaluation.judges.judge import INPUTS, Judge, Measure
from tamiz.evaluation.judges.output import OutputJudge

if TYPE_CHECKING:
    from tamiz.survey.survey import Survey

#: The judges of all kinds of model, the last one of all others; the first one stands for reports
#: that show no loss.
JUDGES: tuple[type[Judge], ...] = (DecoderJudge, EncoderJudge, OutputJudge)


def judge_of(survey: Survey) -> type[Judge]:
    """The judge of a model."""
    return next(judge for judge in JUDGES if judge.is_for(survey))


def judge_of_gate(gate: Any) -> type[Judge]:
    """The judge whose losses the trials of a report's gate show, else that of its limits."""
    for judge in JUDGES:
        if any(getattr(trial, m.name) is not None for trial in gate.trials for m in judge.measures):
            return judge
    if gate.text in INPUTS:
        return OutputJudge
    limited = (j for j in JUDGES if any(getattr(gate, m.limit) is not None for m in j.measures))
    return next(limited, JUDGES[0])


def measure_of_gate(gate: Any) -> Measure:
    """The loss that the trials of a report's gate are shown by: the one that alone is bounded."""
    measures = judge_of_gate(gate).measures
    limited = [measure for measure in measures if getattr(gate, measure.limit) is not None]
    return limited[0] if limited else measures[0]
