"""Configuration of tensor-train."""

from __future__ import annotations

from pydantic import Field

from tamiz.api import POLICY_ONLY, TechniqueConfig


class TensorTrainConfig(TechniqueConfig):
    """How long the train is, and how wide."""

    cores: int = Field(
        3,
        ge=1,
        le=4,
        description="Number of cores of the tensor train; 1 stores the weight itself.",
        json_schema_extra=POLICY_ONLY,
    )
    tolerance: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Largest accepted relative error ‖W − Ŵ‖ / ‖W‖, from which the ranks follow.",
    )
    rank: int | None = Field(
        None,
        ge=1,
        description="Largest rank between two cores. Unset: the ranks follow from `tolerance`.",
    )
