"""Configuration of event-driven."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tamiz.api import TechniqueConfig


def _flag(name: str) -> dict[str, Any]:
    return {"flag": f"--event-{name}"}


class EventDrivenConfig(TechniqueConfig):
    """What is expected of an input, and which inputs are computed."""

    target: Literal["mlp", "attn", "both"] = Field(
        "both",
        description="Linears to act on: gate, up and down; q, k, v and o; all. Linears of neither "
        "kind belong to both.",
        json_schema_extra=_flag("target"),
    )
    reference: Literal["auto", "zero", "mean", "last", "ar1", "decay"] = Field(
        "auto",
        description="What an input that is not computed counts as: 0; its mean; what it was last "
        "computed with; its mean and the part of the last deviation that calibration calls for; "
        "what it was last computed with, decayed by stale_lambda a step. auto: zero, mean, ar1 or "
        "last, whichever leaves the smallest error on the calibration text.",
        json_schema_extra=_flag("reference"),
    )
    topk: float = Field(
        0.7,
        gt=0,
        le=1,
        description="Fraction of the inputs to compute.",
        json_schema_extra=_flag("topk"),
    )
    select: Literal["threshold", "topk"] = Field(
        "threshold",
        description="threshold: a least score for each tensor, which keeps that fraction on "
        "average on the calibration text, without a sort; topk: exactly that fraction, in each "
        "step.",
        json_schema_extra=_flag("select"),
    )
    delta_theta: float | None = Field(
        None,
        ge=0,
        description="Least score |x − expected|·‖W_k‖ that is computed; by default what topk asks "
        "for, or 0 with --event-select=topk.",
        json_schema_extra=_flag("delta-theta"),
    )
    budget_ms: float | None = Field(
        None,
        ge=0,
        description="Milliseconds that the products of a step may take, shared in proportion to "
        "their weights. The result then depends on the speed of the machine.",
        json_schema_extra=_flag("budget-ms"),
    )
    quorum: float = Field(
        0.6,
        ge=0,
        le=1,
        description="Fraction of the chosen inputs that the budget cannot take away.",
        json_schema_extra=_flag("quorum"),
    )
    gap_every: int = Field(
        256,
        ge=0,
        description="Tokens between two dense computations that measure the gap; 0 for none.",
        json_schema_extra=_flag("gap-every"),
    )
    gap_tol: float | None = Field(
        None,
        ge=0,
        description="Largest gap ‖y − y_full‖ / ‖y_full‖; above it the site is dense until the "
        "sequence ends. By default 1.5 times the largest gap on the calibration text, 0.03 without "
        "calibration.",
        json_schema_extra=_flag("gap-tol"),
    )
    age_max: int = Field(
        0,
        ge=0,
        description="Tokens after which an input is computed in any case, all in turn; 0 for none.",
        json_schema_extra=_flag("age-max"),
    )
    stale_beta: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Weight of what is not computed. Other values than 1 need a second sum over "
        "the chosen inputs, and the reference decay.",
        json_schema_extra=_flag("stale-beta"),
    )
    stale_lambda: float = Field(
        0.0,
        ge=0,
        description="Decay a step of the reference decay.",
        json_schema_extra=_flag("stale-lambda"),
    )
    anywhere: bool = Field(
        False,
        description="Also where choosing and adding up takes longer than what it saves to read.",
        json_schema_extra=_flag("anywhere"),
    )
