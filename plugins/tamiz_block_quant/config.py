"""Configuration of block-quant."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from tamiz.api import POLICY_ONLY, Site, SiteKind, TechniqueConfig
from tamiz_ops.formats import FORMATS, Format, find_format, int_format, quantizable

#: Formats that a weight can be rounded to.
_FORMATS = tuple(name for name, format in FORMATS.items() if quantizable(format))

#: Settings with which more than 32 inputs can share a scale.
_SHARING = {"format": (None, "q8_0"), "fit": (None, "nearest")}


class BlockQuantConfig(TechniqueConfig):
    """How many bits a weight takes, and how it is packed."""

    bits: Literal[4, 8] | None = Field(
        None,
        description="Bits per weight of the linear layers. Default: 4 in a decoder, 8 in other "
        "models, such as encoders.",
    )
    head_bits: Literal[4, 8] = Field(
        8, description="Bits per weight of the embedding and the language-model head."
    )
    scale_bits: Literal[16, 8] = Field(
        16,
        description="Bits of the scale and of the minimum of each group of 32 int4 weights. 8 "
        "stores 4.5 bits per weight instead of 5, but does not reproduce a Q4_1 source bit for "
        "bit.",
    )
    format: str | None = Field(
        None,
        description="Weight format of every packed weight, such as q6_k or q3_k; overrides the "
        f"settings for bits. One of: {', '.join(_FORMATS)}.",
    )
    scale_inputs: Literal[32, 128] = Field(
        32,
        description="Inputs of a linear layer that share a scale. 128 needs weights of 8 bits and "
        "the fit nearest. With --activation-bits=8 inputs share a scale, too, and products of many "
        "rows are faster than with 32, but less precise. Without a number --autotune=on tries "
        "128 first in encoders.",
    )
    fit: Literal["nearest", "search", "gptq"] | None = Field(
        None,
        description="How scales, minima and quants are found. nearest: from the extremes of each "
        "group. search: the scale and minimum with the least error, weighted by the calibration's "
        "mean squared inputs. gptq: search, and errors of later inputs make up for those of "
        "earlier ones; needs a calibration. Default with `format`: gptq with a calibration, else "
        "search; without `format` nearest.",
    )
    mask_block: int | None = Field(
        None,
        ge=1,
        description="Inputs that a mask skips together; set by the plan. Below 32, int4 weights "
        "are packed by input channel, so that skipped inputs are not read.",
        json_schema_extra=POLICY_ONLY,
    )

    @field_validator("format")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        if name is not None and name not in _FORMATS:
            raise ValueError(f"expected one of: {', '.join(_FORMATS)}")
        return name

    @model_validator(mode="after")
    def _shares_scales_of_int8(self) -> BlockQuantConfig:
        if self.scale_inputs == 32:
            return self
        for name, allowed in _SHARING.items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} is {getattr(self, name)}, expected {allowed[1]} "
                    f"with scale_inputs {self.scale_inputs}"
                )
        return self

    @property
    def packs_by_format(self) -> bool:
        """Whether weights are fitted by `tamiz_block_quant.formats`."""
        return self.format is not None or self.fit in ("search", "gptq")

    def format_at(self, site: Site) -> Format:
        """The weight format at `site`."""
        if self.format is not None:
            return find_format(self.format)
        return int_format(self.bits_at(site), self.scale_bits_at(site))

    def by_channel(self, site: Site) -> bool:
        """Whether the weight at `site` is packed by input channel."""
        masked = self.mask_block is not None and self.mask_block < 32
        plain = not self.packs_by_format and self.bits_at(site) == 4
        return masked and site.kind is SiteKind.LINEAR and plain

    def shares_scales_at(self, site: Site) -> bool:
        """Whether 128 inputs share a scale at `site`."""
        return self.scale_inputs == 128 and site.kind is SiteKind.LINEAR

    def may_share_scales_at(self, site: Site) -> bool:
        """Whether more than 32 inputs can share a scale at `site`."""
        of_sharing = all(getattr(self, name) in allowed for name, allowed in _SHARING.items())
        eight = self.format is not None or self.bits_at(site) == 8
        return site.kind is SiteKind.LINEAR and of_sharing and eight

    def scale_bits_at(self, site: Site) -> Literal[16, 8]:
        """Bits of a scale at `site`."""
        return 16 if self.bits_at(site) == 8 else self.scale_bits

    def bits_at(self, site: Site) -> Literal[4, 8]:
        """Bits per weight at `site`."""
        if site.kind in (SiteKind.EMBEDDING, SiteKind.HEAD):
            return self.head_bits
        return self.bits or (4 if site.decoder else 8)
