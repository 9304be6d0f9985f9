"""Configuration of kwta."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from tamiz.api import Site, TechniqueConfig

#: Fractions of the inputs to skip at strength 1. With the loss of a tensor a (r / 0.3)^4 for r
#: skipped and its part b of the bytes, sum b r is largest under a given loss at r ~ (b / a)^(1/3);
#: a measured on SmolLM2: o 0.1, down 0.35, q, k, v 2.5, gate and up 6.7 %.
_SKIPPED = {"attn_o": 0.4, "ffn_down": 0.36}
_OTHERS = 0.16


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
        1.0,
        gt=0,
        description="Without k: how much of its inputs a site skips, o 0.4 times the square root "
        "of this and others a fixed part of it, or whatever costs the model too little, where that "
        "can be measured; the gate of the whole model turns it as far as --max-dppl allows.",
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
        description="threshold: a constant of each site, k holds on average; without k moved for "
        "each token by what its errors cost; topk: exactly the "
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
    center: bool | None = Field(
        None,
        description="Take the mean input off first: what loses counts as its mean, not 0. By "
        "default at o, whose inputs are averages themselves.",
    )
    renorm: bool = Field(
        False, description="Multiply the product by blocks / winners, as if what loses were alike."
    )

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.k is not None and self.k_abs is not None:
            raise ValueError("k and k_abs exclude each other")
        return self

    def keep_at(self, site: Site) -> float:
        """Fraction of the blocks to keep at `site`; what `mass` keeps is not known before."""
        if self.k_abs is not None:
            return min(1.0, self.k_abs / -(-site.in_features // self.block))
        if self.k is not None:
            return self.k
        return max(0.1, 1 - _SKIPPED.get(site.tensor or "", _OTHERS) * float(self.strength**0.5))

    def centers(self, site: Site) -> bool:
        """Whether the mean input is taken off at `site`."""
        return site.tensor == "attn_o" if self.center is None else self.center

    @property
    def shared_out(self) -> bool:
        """Whether what is kept is decided site by site."""
        return self.k is None and self.k_abs is None and self.select != "mass"

    @property
    def informed(self) -> bool:
        """Whether what errors cost the model decides what is kept, where that is known."""
        return self.shared_out and self.select == "threshold"

    def pays(self, keep: float) -> bool:
        """Whether a mask that keeps this fraction may save time."""
        return not self.shared_out or keep <= self.max_keep

    def targets(self, site: Site) -> bool:
        """Whether `site` is one of those asked for."""
        part = "attn" if (site.tensor or "").startswith("attn") else "mlp"
        return self.target in (part, "both")
