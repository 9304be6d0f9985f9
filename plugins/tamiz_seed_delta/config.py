"""Configuration of seed-delta."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.api import POLICY_ONLY, Site, SiteKind, TechniqueConfig


class SeedDeltaConfig(TechniqueConfig):
    """Which weights are taken, the base, and how much of the residual is stored."""

    target: Literal["mlp", "attn", "both", "all"] = Field(
        "mlp",
        description="Layers whose weights are replaced. mlp: gate, up and down; attn: q, k, v and "
        "o; both: all linear layers; all: the head too. A policy that names another tensor adds "
        "that one.",
    )
    base: Literal["none", "xor-circulant", "hadamard", "seedlm"] = Field(
        "none",
        description="Base W0 of the weight, generated from a seed; none stores the residual only.",
    )
    base_bits: Literal[3, 4] = Field(
        4, description="Bits per weight of base=seedlm. 3 tries 2^11 seeds per block, 4 tries 2^16."
    )
    depth: int = Field(
        2,
        ge=1,
        le=16,
        description="Number of factors of base=hadamard.",
        json_schema_extra=POLICY_ONLY,
    )
    perm_trials: int = Field(
        8,
        ge=1,
        le=1024,
        description="Number of seeds tried for base=hadamard; the best one is kept.",
        json_schema_extra=POLICY_ONLY,
    )
    row_scale: bool = Field(
        True, description="Scale the base by one factor per output. false: one factor per weight."
    )
    scheme: Literal["block", "coo"] = Field(
        "block",
        description="Layout of the stored residual. block: blocks of inputs; coo: single weights.",
    )
    k: int = Field(256, ge=0, description="Number of residual weights stored per output.")
    block: int = Field(
        32, ge=32, le=4096, multiple_of=32, description="Inputs per block of the residual."
    )
    bits: Literal[4, 8, 16] = Field(
        8, description="Bits per stored weight of the residual; 16 is fp16."
    )
    refit: bool = Field(
        False,
        description="Refit the stored residual on the calibration samples by least squares.",
    )


def takes(site: Site, config: SeedDeltaConfig) -> bool:
    """Whether the target includes a site."""
    if config.target in ("both", "all"):
        return config.target == "all" or site.kind is not SiteKind.HEAD
    return (site.tensor or "").startswith({"mlp": "ffn_", "attn": "attn_"}[config.target])
