"""Configuration of block-quant."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.api import Site, SiteKind, TechniqueConfig


class BlockQuantConfig(TechniqueConfig):
    """How many bits a weight takes, and how it is packed."""

    bits: Literal[4, 8] = Field(4, description="Bits per weight of the linear layers.")
    head_bits: Literal[4, 8] = Field(
        8, description="Bits per weight of the embedding and the language-model head."
    )
    scale_bits: Literal[16, 8] = Field(
        16,
        description="Bits of the scale and of the minimum of each group of 32 int4 weights. 8 "
        "stores 4.5 bits per weight instead of 5, but does not reproduce a Q4_1 source bit for "
        "bit.",
    )

    mask_block: int | None = Field(
        None,
        ge=1,
        description="Inputs that a mask skips together; set by the plan. Below 32, int4 weights "
        "are packed by input channel, so that skipped inputs are not read.",
    )

    def by_channel(self, site: Site) -> bool:
        """Whether the weight at `site` is packed by input channel."""
        masked = self.mask_block is not None and self.mask_block < 32
        return masked and site.kind is SiteKind.LINEAR and self.bits == 4

    def scale_bits_at(self, site: Site) -> Literal[16, 8]:
        """Bits of a scale at `site`."""
        return 16 if self.bits_at(site) == 8 else self.scale_bits

    def bits_at(self, site: Site) -> Literal[4, 8]:
        """Bits per weight at `site`."""
        return self.head_bits if site.kind in (SiteKind.EMBEDDING, SiteKind.HEAD) else self.bits
