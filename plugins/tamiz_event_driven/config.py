"""Configuration of event-driven."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.api import POLICY_ONLY, TechniqueConfig


class EventDrivenConfig(TechniqueConfig):
    """What is expected of an input, and which inputs are computed."""

    target: Literal["mlp", "attn", "both"] = Field(
        "both",
        description="Layers computed by events. mlp: gate, up, down; attn: q, k, v, o; both.",
    )
    reference: Literal["auto", "zero", "mean", "last", "ar1", "decay"] = Field(
        "auto",
        description="Value of an input that is not computed. zero: 0; mean: its mean; last: its "
        "last computed value; ar1: its mean plus a fitted share of its last deviation; decay: "
        "last, decayed by `stale_lambda`; auto: the one with the least error in calibration.",
    )
    topk: float = Field(
        0.7,
        gt=0,
        le=1,
        description="Fraction of the inputs that are computed per step.",
    )
    select: Literal["threshold", "topk"] = Field(
        "threshold",
        description="Rule that picks the computed inputs. threshold: a smallest score per "
        "tensor, which holds `topk` on average over the calibration text; topk: exactly `topk` "
        "in each step, which needs a sort.",
        json_schema_extra=POLICY_ONLY,
    )
    block: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Inputs that are computed or left out together. By default the block of the "
        "weights, which the plan shows: 1 with block-quant.",
    )
    delta_theta: float | None = Field(
        None,
        ge=0,
        description="Smallest score |x − expected| · ‖W column‖ at which an input is computed, by "
        "default derived from `topk`.",
    )
    budget_ms: float | None = Field(
        None,
        ge=0,
        description="Time limit of the products of a step, in ms, shared in proportion to the "
        "weights' sizes. Results then depend on the speed of the machine.",
    )
    quorum: float = Field(
        0.6,
        ge=0,
        le=1,
        description="Fraction of the picked inputs that are computed even if `budget_ms` is "
        "exceeded.",
    )
    gap_every: int = Field(
        256,
        ge=0,
        description="Tokens between two dense computations that measure the gap ‖y − y_full‖ / "
        "‖y_full‖; 0 never measures the gap.",
    )
    gap_tol: float | None = Field(
        None,
        ge=0,
        description="Largest accepted gap ‖y − y_full‖ / ‖y_full‖; beyond it the site stays "
        "dense until the sequence ends. By default 1.5 times the largest gap on the calibration "
        "text, or 0.03 without calibration.",
    )
    age_max: int = Field(
        0,
        ge=0,
        description="Largest age of an input, in tokens; older inputs are computed again, some "
        "in each step. 0 sets no limit.",
    )
    stale_beta: float = Field(
        1.0,
        ge=0,
        le=1,
        description="Weight of the inputs that are not computed. Values other than 1 need "
        "reference=decay.",
    )
    stale_lambda: float = Field(
        0.0,
        ge=0,
        description="Decay rate per step of reference=decay.",
    )
    anywhere: bool = Field(
        False,
        description="Also act at sites where picking inputs takes longer than the skipped reads "
        "save.",
        json_schema_extra=POLICY_ONLY,
    )

    @property
    def width(self) -> int:
        """Inputs of a block."""
        return self.block or 1
