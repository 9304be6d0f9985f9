"""Configuration of proc-sparse."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.api import TechniqueConfig

MLP = frozenset({"ffn_gate", "ffn_up", "ffn_down"})
ATTENTION = frozenset({"attn_q", "attn_k", "attn_v", "attn_o"})


class ProcSparseConfig(TechniqueConfig):
    """How much of a weight exists, and how much of that is stored."""

    target: Literal["mlp", "attn", "both"] = Field(
        "both",
        description="Feed-forward weights, attention's, or both.",
        json_schema_extra={"flag": "--proc-target"},
    )
    fanout: int = Field(
        64,
        ge=1,
        description="Most blocks of inputs that an output reads; the others are 0.",
        json_schema_extra={"flag": "--proc-fanout"},
    )
    head_size: int = Field(
        0,
        ge=0,
        multiple_of=32,
        description=(
            "Width of an attention head: the fanout of attn_o then counts for each head of inputs, "
            "and the outputs of a head of attn_q, attn_k and attn_v read the same blocks. 0: rows "
            "as a whole."
        ),
        json_schema_extra={"flag": "--proc-head-size"},
    )
    block: int = Field(
        32,
        ge=32,
        le=4096,
        multiple_of=32,
        description="Inputs of a block.",
        json_schema_extra={"flag": "--proc-block"},
    )
    base_scale: float = Field(
        0.05,
        ge=0,
        le=1,
        description=(
            "Standard deviation of the hash weights, as a share of the weight's; 0 switches the "
            "hash off."
        ),
        json_schema_extra={"flag": "--proc-base-scale"},
    )
    watermark: int = Field(
        4096,
        ge=0,
        description="Most deltas of an output that are stored; the smallest go first.",
        json_schema_extra={"flag": "--proc-watermark"},
    )
    shed_eps: float = Field(
        1e-3,
        ge=0,
        description="Deltas below this share of the output's root mean square are not stored.",
        json_schema_extra={"flag": "--proc-shed-eps"},
    )
    bits: Literal[4, 8] = Field(
        4,
        description="Bits of a stored weight.",
        json_schema_extra={"flag": "--proc-bits"},
    )

    def takes(self, tensor: str | None) -> bool:
        """Whether the target holds a tensor; one without an id only belongs to `both`."""
        chosen = {"mlp": MLP, "attn": ATTENTION}.get(self.target)
        return chosen is None or tensor in chosen
