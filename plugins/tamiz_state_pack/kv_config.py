"""Configuration of the key/value filter."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from tamiz.api import TechniqueConfig


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
        640,
        ge=0,
        description="Keys kept for their score, in tokens; set alone, in every layer and context.",
    )
    keep_fraction: float = Field(
        0.08,
        ge=0,
        le=1,
        description="The same as a fraction of the context; the larger one counts.",
    )
    late_part: float = Field(
        0.2, ge=0, le=1, description="Last part of the layers, which need fewer keys."
    )
    late_share: float = Field(
        0.625, ge=0, le=1, description="Keys that they keep, as a share of what the others keep."
    )
    recent: int = Field(64, ge=1, description="Last keys that are always kept, in tokens.")
    density: float = Field(
        0.4,
        gt=0,
        le=1,
        description="The filter rests in a step that would keep more than this fraction of keys.",
    )
    exact_layers: int = Field(0, ge=0, description="First layers that are left exact.")

    @model_validator(mode="before")
    @classmethod
    def _keep_alone(cls, fields: Any) -> Any:
        """A number of keys that is asked for alone is the same in all layers at any context."""
        others = {"keep_fraction", "late_part", "late_share"}
        if isinstance(fields, dict) and "keep" in fields and not others & fields.keys():
            return {"keep_fraction": 0.0, "late_part": 0.0, **fields}
        return fields
