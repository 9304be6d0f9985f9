"""Configuration of seed-delta."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.api import TechniqueConfig


class SeedDeltaConfig(TechniqueConfig):
    """The base and how much of the residual is stored."""

    base: Literal["none", "xor-circulant", "hadamard", "seedlm"] = Field(
        "none", description="Base W0 of the weight."
    )
    base_bits: Literal[3, 4] = Field(
        4, description="Bits of a weight of base seedlm: 3 try 2^11 seeds a block, 4 try 2^16."
    )
    depth: int = Field(2, ge=1, le=16, description="Factors of the Hadamard stack.")
    perm_trials: int = Field(
        8, ge=1, le=1024, description="Seeds of the Hadamard stack to try; the best one stays."
    )
    row_scale: bool = Field(
        True, description="One factor of the base for each output, instead of one in all."
    )
    scheme: Literal["block", "coo"] = Field(
        "block", description="The residual's shape: blocks of inputs, or single weights."
    )
    k: int = Field(256, ge=0, description="Weights of an output that the residual stores.")
    block: int = Field(
        32, ge=32, le=4096, multiple_of=32, description="Inputs of a block of the residual."
    )
    bits: Literal[4, 8, 16] = Field(
        8, description="Bits of a stored weight of the residual; 16 is fp16."
    )
    refit: bool = Field(
        False,
        description="Least-squares refit of what the residual stores on the calibration samples.",
    )
