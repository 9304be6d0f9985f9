"""Configuration of kwta."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from tamiz.api import POLICY_ONLY, Site, TechniqueConfig

#: Fractions of the inputs to skip at strength 1. With the loss of a tensor a (r / 0.3)^4 for r
#: skipped and its part b of the bytes, sum b r is largest under a given loss at r ~ (b / a)^(1/3);
#: a measured on SmolLM2: o 0.1, down 0.35, q, k, v 2.5, gate and up 6.7 %.
_SKIPPED = {"attn_o": 0.4, "ffn_down": 0.36}
_OTHERS = 0.16


class KwtaConfig(TechniqueConfig):
    """Which inputs are kept (k winners take all)."""

    k: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Fraction of the input blocks that are kept. Unset: the build chooses the "
        "fraction of each site from `strength`.",
    )
    k_abs: int | None = Field(
        None, ge=1, description="Number of input blocks that are kept, instead of `k`."
    )
    strength: float = Field(
        1.0,
        gt=0,
        description="Sparsity level, used when `k` is not set. Higher skips more inputs. By "
        "default the build raises it until `--max-dppl` is reached.",
    )
    max_keep: float = Field(
        0.75,
        gt=0,
        le=1,
        description="Largest kept fraction at which a site is masked, used when `k` is not set. "
        "Sites that would keep more stay dense, because selecting and skipping take time.",
        json_schema_extra=POLICY_ONLY,
    )
    select: Literal["threshold", "topk", "mass"] = Field(
        "threshold",
        description="Rule that picks the kept blocks. threshold: a constant per site, which "
        "holds `k` on average and without `k` adapts to each token; topk: exactly `k` for each "
        "token; mass: the fewest blocks that hold `mass` of softmax(score / `temp`).",
    )
    mass: float = Field(
        0.9,
        gt=0,
        le=1,
        description="Share of softmax(score / `temp`) that the kept blocks hold, used by "
        "select=mass.",
        json_schema_extra=POLICY_ONLY,
    )
    temp: float = Field(
        1.0,
        gt=0,
        description="Temperature of the softmax of select=mass, relative to the mean score "
        "of the site.",
    )
    block: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="Inputs per block; the inputs of a block are kept or skipped together. By "
        "default the block of the weights, which the plan shows: 1 with block-quant.",
    )
    target: Literal["mlp", "attn", "both"] = Field(
        "both",
        description="Layers that are masked. mlp: gate, up and down; attn: q, k, v and o; both: "
        "all of these.",
    )
    duty: int = Field(
        1,
        ge=1,
        description="Interval between masked positions, in tokens: positions that are "
        "multiples of `duty` are masked, others are computed densely.",
    )
    first: int = Field(
        4,
        ge=0,
        description="Number of positions at the start of a sequence that are computed densely.",
        json_schema_extra=POLICY_ONLY,
    )
    weighted: bool = Field(
        True,
        description="Score an input by |x| · ‖W column‖. false: by |x| only.",
        json_schema_extra=POLICY_ONLY,
    )
    center: bool | None = Field(
        None,
        description="Subtract the mean input before masking, so that a skipped input counts as "
        "its mean instead of 0. By default only attn_o does, where centring allows more sparsity "
        "at equal loss.",
        json_schema_extra=POLICY_ONLY,
    )
    renorm: bool = Field(
        False,
        description="Multiply the product by blocks / kept blocks, to compensate for the "
        "skipped inputs.",
    )

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if self.k is not None and self.k_abs is not None:
            raise ValueError("k and k_abs exclude each other")
        return self

    @property
    def width(self) -> int:
        """Inputs of a block."""
        return self.block or 1

    def keep_at(self, site: Site) -> float:
        """Fraction of the blocks to keep at `site`; not known before the fit with `mass`."""
        if self.k_abs is not None:
            return min(1.0, self.k_abs / -(-site.in_features // self.width))
        if self.k is not None:
            return self.k
        return max(0.1, 1 - _SKIPPED.get(site.tensor or "", _OTHERS) * float(self.strength**0.5))

    def centers(self, site: Site) -> bool:
        """Whether the mean input is taken off at `site`."""
        return site.tensor == "attn_o" if self.center is None else self.center

    @property
    def shared_out(self) -> bool:
        """Whether each site has its own fraction to keep."""
        return self.k is None and self.k_abs is None and self.select != "mass"

    @property
    def reads_sensitivity(self) -> bool:
        """Whether the measured cost of errors decides what is kept, where it is known."""
        return self.shared_out and self.select == "threshold"

    def pays(self, keep: float) -> bool:
        """Whether a mask that keeps this fraction may save time."""
        return not self.shared_out or keep <= self.max_keep

    def targets(self, site: Site) -> bool:
        """Whether `target` includes `site`."""
        part = "attn" if (site.tensor or "").startswith("attn") else "mlp"
        return self.target in (part, "both")
