"""Configuration of kwta."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from tamiz.site import Site
from tamiz.technique import TechniqueConfig


class KwtaConfig(TechniqueConfig):
    """Which inputs win."""

    k: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Fraction of the blocks of inputs to keep; by default shared out over the "
        "sites as --kwta-strength says.",
    )
    k_abs: int | None = Field(None, ge=1, description="Blocks of inputs to keep, instead of k.")
    strength: float = Field(
        1.5,
        gt=0,
        description="Without k: how much harm a saved byte may do, by estimate; the gate of the "
        "whole model turns it as far as --max-dppl allows.",
    )
    max_keep: float = Field(
        0.75,
        gt=0,
        le=1,
        description="Without k: a site that would keep more than this stays dense, as choosing "
        "and skipping take time, too.",
    )
    select: Literal["threshold", "topk", "mass"] = Field(
        "threshold",
        description="threshold: a constant of each site, k holds on average; topk: exactly the "
        "k best of each token; mass: the fewest that hold --kwta-mass of softmax(score / temp).",
    )
    mass: float = Field(0.9, gt=0, le=1, description="Of select=mass.")
    temp: float = Field(
        1.0, gt=0, description="Of select=mass, relative to the mean score of the site."
    )
    block: int = Field(1, ge=1, le=64, description="Inputs that win or lose together.")
    target: Literal["mlp", "attn", "both"] = Field("both", description="Which linear layers.")
    duty: int = Field(
        1, ge=1, description="Only positions that are multiples of it are masked, others dense."
    )
    first: int = Field(4, ge=0, description="First positions of a sequence that stay dense.")
    weighted: bool = Field(True, description="Score |x|·‖W‖ of the column instead of |x|.")
    center: bool = Field(
        False, description="Take the mean input off first: what loses counts as its mean, not 0."
    )

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.k is not None and self.k_abs is not None:
            raise ValueError("k and k_abs exclude each other")
        return self

    @property
    def shared_out(self) -> bool:
        """Whether the strength decides how much a site keeps."""
        return self.k is None and self.k_abs is None and self.select != "mass"

    def targets(self, site: Site) -> bool:
        """Whether `site` is one of those asked for."""
        part = "attn" if (site.tensor or "").startswith("attn") else "mlp"
        return self.target in (part, "both")
