"""Configuration of block-quant."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.site import Site, SiteKind
from tamiz.technique import TechniqueConfig


class BlockQuantConfig(TechniqueConfig):
    """How many bits a weight gets."""

    bits: Literal[4, 8] = Field(4, description="Bits per weight of the linear layers.")
    head_bits: Literal[4, 8] = Field(
        8, description="Bits per weight of the embedding and the language-model head."
    )

    def bits_at(self, site: Site) -> Literal[4, 8]:
        """Bits per weight at `site`."""
        return self.head_bits if site.kind in (SiteKind.EMBEDDING, SiteKind.HEAD) else self.bits
