"""What a report says of the gate of the whole model."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from tamiz.evaluation.judges import measure_of_gate
from tamiz.evaluation.judges.judge import Judge, Measure, WhatIsRead
from tamiz.planning.goal import Goal
from tamiz.reporting.record import Count, Record

#: Why a gate did not run where the user set no limit.
SWITCHED_OFF = "switched off"
#: How the reason begins where nothing lossy is applied, as its loss could not be measured.
NOTHING_LOSSY = "nothing lossy is applied"


class DomainReport(Record):
    """What a candidate loses on one domain of the text; of a model that is neither a decoder nor an
    encoder, at one output.

    Attributes:
        windows: Windows, of an encoder texts, that were read; of a model without text inputs.
        dppl: Δppl; None where the perplexity was not finite.
        dppl_error: Standard error of ln(1 + Δppl) over windows; None for a single window.
        kl: Mean KL divergence, in nats per token, of prompts or of decode steps.
        kl_error: Standard error of `kl` over windows.
        cosine: Mean cosine between the embeddings of an encoder, or the output, and of dense.
    """

    windows: Count
    dppl: float | None = None
    dppl_error: float | None = None
    kl: float | None = None
    kl_error: float | None = None
    cosine: float | None = None


class TrialReport(Record):
    """A candidate that the gate of the whole model built and measured against dense.

    Attributes:
        refused: Ids of the sites at which the candidate did without the technique.
        predicted: Predicted Δppl, of others 1 - cosine; None where there was no prediction.
        strength: Value of the techniques' common strength; None where the trial set none.
        dppl: Measured Δppl; None where the perplexity was not finite.
        kl_mean: Mean over positions of KL(dense ‖ candidate), in nats.
        ppl: Perplexity of the candidate.
        ppl_dense: Perplexity of the dense model.
        ppl_decode: Perplexity of the candidate in the positions that are read in steps.
        ppl_decode_dense: Perplexity of the dense model in the same positions.
        kl_decode: As `kl_mean`, of a candidate that reads in steps.
        dppl_error: Standard error of ln(1 + Δppl), over domains where there are three or more, else
            over windows; None for a single window.
        kl_error: Likewise of the larger of `kl_mean` and `kl_decode`.
        cosine: Mean of the cosine between the embeddings of an encoder and of dense.
        cosine_error: Standard error of `cosine`.
        output_cosine: Of a model that is neither: mean cosine between the rows of outputs and of
            dense, of the output that differs most; see `tamiz.evaluation.judges.output`.
        output_cosine_error: Standard error of `output_cosine`; None for a single input.
        used: Share of the limits that the upper bound of the loss uses; None where no loss is
            limited.
        domains: The losses on each domain of the text, by name.
        bytes: Bytes of all constants of the candidate; None where none were predicted.
        predicted_tok_s: Predicted tokens per second of a decode step; None where the machine was
            not measured.
        holds: Whether the candidate is within the limits.
    """

    refused: list[str]
    predicted: float | None
    strength: float | None = None
    dppl: float | None = None
    kl_mean: float | None = None
    ppl: float | None = None
    ppl_dense: float | None = None
    ppl_decode: float | None = None
    ppl_decode_dense: float | None = None
    kl_decode: float | None = None
    dppl_error: float | None = None
    kl_error: float | None = None
    cosine: float | None = None
    cosine_error: float | None = None
    output_cosine: float | None = None
    output_cosine_error: float | None = None
    bytes: Count | None = None
    predicted_tok_s: float | None = None
    used: float | None = None
    domains: dict[str, DomainReport] = Field(default_factory=dict)
    holds: bool

    @property
    def kl(self) -> float | None:
        """The larger KL divergence, of prompts or of steps; None where none was measured."""
        measured = [kl for kl in (self.kl_mean, self.kl_decode) if kl is not None]
        return max(measured, default=None)


class Paying(Record):
    """Whether a technique that a build within limits might choose pays.

    Attributes:
        technique: Its name.
        applied: Whether the built model has it.
        reason: Predicted or measured times.
    """

    technique: str
    applied: bool
    reason: str


class WholeModelGate(Record):
    """The gate of the whole model: what the built model loses on a text, held to a budget.

    Attributes:
        max_dppl: Largest accepted Δppl; None for no such limit.
        max_kl: Largest accepted mean KL divergence, in nats per token; None for no such limit.
        min_cosine: Smallest accepted mean cosine of embeddings, or outputs; None for no such limit.
        skipped: Why the gate did not run; None where it ran.
        text: What was read: ``calibration`` (of a file), ``domains`` (the text that ships with
            tamiz, and texts that were given), or ``the model's own``; of a model that reads no text
            ``samples`` (of files) or ``made-up inputs``.
        windows: Windows of text, or inputs, that each trial read.
        window_tokens: Tokens of a window.
        decode: Whether trials also read in steps.
        trials: The candidates, in order.
        built: Index in `trials` of the built candidate; None where nothing lossy was left.
        paying: Techniques that a build within limits might choose.
    """

    max_dppl: float | None
    max_kl: float | None = None
    min_cosine: float | None = None
    skipped: str | None = None
    text: WhatIsRead | None = None
    windows: Count | None = None
    window_tokens: Count | None = None
    decode: bool = False
    trials: list[TrialReport] = Field(default_factory=list)
    built: Count | None = None
    paying: list[Paying] = Field(default_factory=list)

    @model_validator(mode="after")
    def _built_is_a_trial(self) -> WholeModelGate:
        if self.built is not None and self.built >= len(self.trials):
            most = len(self.trials)
            raise ValueError(f"Input should be an index below the number of trials, {most}")
        return self

    @classmethod
    def not_run(cls, goal: Goal, reason: str) -> WholeModelGate:
        """A gate that did not run, and why."""
        return cls(max_dppl=goal.max_dppl, min_cosine=goal.min_cosine, skipped=reason)

    @classmethod
    def of(
        cls,
        judge: Judge,
        trials: Sequence[TrialReport],
        built: int | None,
        paying: Sequence[Paying] = (),
    ) -> WholeModelGate:
        """A gate that ran.

        Args:
            judge: Who scored the candidates.
            trials: The candidates, in order.
            built: Index of the one that was built.
            paying: Techniques that the build might choose.
        """
        return cls(
            max_dppl=judge.goal.max_dppl,
            max_kl=judge.goal.max_kl,
            min_cosine=judge.goal.min_cosine,
            text=judge.read,
            windows=judge.windows,
            window_tokens=judge.window_tokens,
            decode=judge.steps,
            trials=list(trials),
            built=built,
            paying=list(paying),
        )

    @property
    def measure(self) -> Measure:
        """The loss that trials are shown by."""
        return measure_of_gate(self)

    @property
    def result(self) -> TrialReport | None:
        """The trial of the model that was built."""
        return None if self.built is None else self.trials[self.built]
