"""Configuration of ternary."""

from __future__ import annotations

from pydantic import Field

from tamiz.api import TechniqueConfig


class TernaryConfig(TechniqueConfig):
    """Which weights are taken."""

    max_error: float = Field(
        0.1,
        ge=0,
        le=1,
        description="Largest relative error ‖W − Ŵ‖ / ‖W‖, with inputs weighted by the imatrix. "
        "Weights that were not trained ternary have about 0.45 and are refused.",
    )
