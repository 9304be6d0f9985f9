"""What a report says of the gate of the whole model."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from tamiz.reporting.record import Count, Record

#: Why a gate did not run where the user set no limit.
SWITCHED_OFF = "switched off"


class Trial(Record):
    """A candidate that the gate of the whole model built and measured against dense.

    Attributes:
        refused: Ids of the sites at which the candidate did without the technique.
        predicted: Predicted Δppl, of an encoder 1 - cosine; None where there was no prediction.
        strength: Value of the techniques' common strength; None where the trial set none.
        dppl: Measured Δppl; None where the perplexity was not finite.
        kl_mean: Mean over positions of KL(dense ‖ candidate), in nats.
        ppl: Perplexity of the candidate.
        ppl_dense: Perplexity of the dense model.
        ppl_decode: Perplexity of the candidate in the positions that are read in steps.
        ppl_decode_dense: Perplexity of the dense model in the same positions.
        kl_decode: As `kl_mean`, of a candidate that reads in steps.
        dppl_error: Standard error of ln(1 + Δppl) over windows; None for a single window.
        kl_error: Likewise of the larger of `kl_mean` and `kl_decode`.
        cosine: Mean over texts of the cosine between the embeddings of an encoder and of dense.
        cosine_error: Standard error of `cosine` over texts.
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
    bytes: Count | None = None
    predicted_tok_s: float | None = None
    holds: bool

    @property
    def kl(self) -> float | None:
        """The larger KL divergence, of prompts or of steps; None where none was measured."""
        found = [kl for kl in (self.kl_mean, self.kl_decode) if kl is not None]
        return max(found, default=None)


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
        min_cosine: Smallest accepted mean cosine of embeddings; None for no such limit.
        skipped: Why the gate did not run; None where it ran.
        text: What was read: ``calibration``, or ``the model's own``.
        windows: Windows of text that each trial read.
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
    text: Literal["calibration", "the model's own"] | None = None
    windows: Count | None = None
    window_tokens: Count | None = None
    decode: bool = False
    trials: list[Trial] = Field(default_factory=list)
    built: Count | None = None
    paying: list[Paying] = Field(default_factory=list)

    @model_validator(mode="after")
    def _built_is_a_trial(self) -> WholeModelGate:
        if self.built is not None and self.built >= len(self.trials):
            most = len(self.trials)
            raise ValueError(f"Input should be an index below the number of trials, {most}")
        return self

    @property
    def shown_by(self) -> Literal["dppl", "kl_mean", "cosine"]:
        """The attribute of trials that shows what they lose."""
        if any(trial.cosine is not None for trial in self.trials):
            return "cosine"
        return "kl_mean" if self.max_kl is not None and self.max_dppl is None else "dppl"

    @property
    def result(self) -> Trial | None:
        """The trial of the model that was built."""
        return None if self.built is None else self.trials[self.built]
