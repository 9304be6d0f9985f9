"""Configuration of head-shortlist."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.api import POLICY_ONLY, TechniqueConfig


class HeadShortlistConfig(TechniqueConfig):
    """The size of the sketch, and what is computed exactly after it."""

    dims: int = Field(
        64,
        ge=1,
        le=8192,
        description="Principal axes of the sketch; at most the width of the head's input.",
    )
    sketch_bits: Literal[4, 8] = Field(
        4, description="Bits per number of the sketch.", json_schema_extra=POLICY_ONLY
    )
    keep: int | None = Field(
        None,
        ge=1,
        description="Number of logits that are computed exactly, rounded up to a multiple of 16. "
        "By default the smallest number that reaches `recall` and `kl`.",
    )
    recall: float = Field(
        0.995,
        gt=0,
        le=1,
        description="Smallest accepted fraction of held-out calibration tokens whose largest "
        "logit is computed exactly. Checked on every calibration text.",
    )
    kl: float = Field(
        0.0175,
        gt=0,
        description="Largest accepted mean KL divergence of the softmax with estimates from the "
        "exact one, in nats, on every calibration text. Used with fill=estimate.",
    )
    fill: Literal["estimate", "-inf"] = Field(
        "estimate",
        description="Value of the logits that are not computed exactly: an estimate from the "
        "sketch, or minus infinity.",
        json_schema_extra=POLICY_ONLY,
    )
    rows: int = Field(
        8,
        ge=1,
        le=128,
        description="Largest number of positions per run that use the shortlist. A run that "
        "requests the logits of more positions gets exact logits.",
        json_schema_extra=POLICY_ONLY,
    )
