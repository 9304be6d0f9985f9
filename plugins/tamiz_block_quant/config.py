"""Configuration of block-quant."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.site import Site, SiteKind
from tamiz.technique import TechniqueConfig


class BlockQuantConfig(TechniqueConfig):
    """How many bits a weight gets, and how it lies."""

    bits: Literal[4, 8] = Field(4, description="Bits per weight of the linear layers.")
    head_bits: Literal[4, 8] = Field(
        8, description="Bits per weight of the embedding and the language-model head."
    )

    mask_block: int | None = Field(
        None,
        ge=1,
        description="Inputs that a mask leaves out together; the plan sets it where one acts. "
        "Below 32, int4 is packed by input channel, so that what is left out is not read.",
    )

    def by_channel(self, site: Site) -> bool:
        """Whether the weight at `site` is packed by input channel."""
        masked = self.mask_block is not None and self.mask_block < 32
        return masked and site.kind is SiteKind.LINEAR and self.bits == 4

    def bits_at(self, site: Site) -> Literal[4, 8]:
        """Bits per weight at `site`."""
        return self.head_bits if site.kind in (SiteKind.EMBEDDING, SiteKind.HEAD) else self.bits
