"""Configuration of tt."""

from __future__ import annotations

from pydantic import Field

from tamiz.api import TechniqueConfig


class TensorTrainConfig(TechniqueConfig):
    """How long the train is, and how wide."""

    cores: int = Field(3, ge=1, le=4, description="Cores of the train; 1 is the weight itself.")
    tolerance: float = Field(
        0.1, ge=0, lt=1, description="Relative error ‖W − Ŵ‖ / ‖W‖ that the ranks allow at most."
    )
    rank: int | None = Field(
        None,
        ge=1,
        description="Largest rank between cores, instead of what the tolerance asks for.",
    )
