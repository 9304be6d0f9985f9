"""Configuration of the key/value filter."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from tamiz.technique import TechniqueConfig


class StatePackConfig(TechniqueConfig):
    """How keys are sketched and how many are kept."""

    mode: Literal["binary", "ternary"] = Field(
        "binary",
        description="Bits of a key's element: its sign, or positive, zero and negative.",
        json_schema_extra={"flag": "--state-pack"},
    )
    eps: float = Field(
        0.5,
        ge=0,
        le=4,
        description="Ternary: elements up to eps times the key's mean size count as zero.",
    )
    popcnt: bool = Field(
        False, description="Pack the query as the keys are: faster scores, which choose worse."
    )
    keep: int = Field(
        320,
        ge=0,
        description="Keys kept for their score, in tokens; set without a fraction, at any context.",
    )
    keep_fraction: float = Field(
        0.064,
        ge=0,
        le=1,
        description="The same as a fraction of the context; the larger one counts.",
    )
    early_part: float = Field(
        0.5, ge=0, le=1, description="First part of the layers, whose attention is broad."
    )
    early_fraction: float = Field(
        0.13, ge=0, le=1, description="Fraction of the context that they keep at least."
    )
    recent: int = Field(64, ge=1, description="Last keys that are always kept, in tokens.")
    density: float = Field(
        0.25,
        gt=0,
        le=1,
        description="The filter rests in a step that would keep more than this fraction of keys.",
    )
    exact_layers: int = Field(0, ge=0, description="First layers that are left exact.")

    @model_validator(mode="before")
    @classmethod
    def _keep_alone(cls, fields: Any) -> Any:
        """A number of keys that is asked for alone is not overruled by default fractions."""
        fractions = {"keep_fraction", "early_fraction"}
        if isinstance(fields, dict) and "keep" in fields and not fractions & fields.keys():
            return {**dict.fromkeys(fractions, 0.0), **fields}
        return fields
