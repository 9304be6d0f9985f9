"""Configuration of head-shortlist."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.api import TechniqueConfig


class HeadShortlistConfig(TechniqueConfig):
    """The size of the sketch, and what is computed exactly after it."""

    dims: int = Field(
        64,
        ge=1,
        le=8192,
        description="Principal axes of the sketch, at most the dimensions of the head's input.",
        json_schema_extra={"flag": "--head-dims"},
    )
    sketch_bits: Literal[4, 8] = Field(
        4,
        description="Bits per number along these axes.",
        json_schema_extra={"flag": "--head-sketch-bits"},
    )
    keep: int | None = Field(
        None,
        ge=1,
        description="Logits that are computed exactly, rounded up to tiles of 16; by default as "
        "many as the recall and the divergence ask for.",
        json_schema_extra={"flag": "--head-keep"},
    )
    recall: float = Field(
        0.995,
        gt=0,
        le=1,
        description="Fraction of the held-out calibration tokens whose largest logit has to be "
        "among the exact ones, on every text.",
        json_schema_extra={"flag": "--head-recall"},
    )
    kl: float = Field(
        0.0175,
        gt=0,
        description="Largest mean KL divergence, in nats, of the softmax with estimates from the "
        "exact one, on every text; holds where the other logits are estimates.",
        json_schema_extra={"flag": "--head-kl"},
    )
    fill: Literal["estimate", "-inf"] = Field(
        "estimate",
        description="What the other logits are.",
        json_schema_extra={"flag": "--head-fill"},
    )
    rows: int = Field(
        8,
        ge=1,
        le=128,
        description="Most positions of a run that take the shortlist; a run that asks for the "
        "logits of more gets exact ones.",
        json_schema_extra={"flag": "--head-rows"},
    )
