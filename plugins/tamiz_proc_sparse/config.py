"""Configuration of proc-sparse."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tamiz.api import POLICY_ONLY, TechniqueConfig

MLP = frozenset({"ffn_gate", "ffn_up", "ffn_down"})
ATTENTION = frozenset({"attn_q", "attn_k", "attn_v", "attn_o"})


class ProcSparseConfig(TechniqueConfig):
    """How much of a weight exists, and how much of that is stored."""

    target: Literal["mlp", "attn", "both"] = Field(
        "both",
        description="Layers whose weights are replaced. mlp: feed-forward; attn: attention; "
        "both: all of these.",
    )
    fanout: int = Field(
        64,
        ge=1,
        description="Largest number of input blocks that an output reads; the weights of other "
        "blocks are 0.",
    )
    head_size: int = Field(
        0,
        ge=0,
        multiple_of=32,
        description="Width of an attention head, in inputs. `fanout` then counts per head of "
        "attn_o, and the outputs of a head of attn_q, attn_k and attn_v read equal blocks. 0 "
        "treats each row as a whole.",
        json_schema_extra=POLICY_ONLY,
    )
    block: int = Field(
        32,
        ge=32,
        le=4096,
        multiple_of=32,
        description="Inputs per block.",
    )
    base_scale: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Standard deviation of the hashed weights, relative to that of the weight. 0 "
        "switches hashing off.",
    )
    watermark: int = Field(
        4096,
        ge=0,
        description="Largest number of stored deltas per output; the smallest deltas are dropped "
        "first.",
    )
    shed_eps: float = Field(
        1e-3,
        ge=0,
        description="Smallest stored delta, relative to the root mean square of the output's "
        "weights.",
    )
    bits: Literal[4, 8] = Field(
        4, description="Bits per stored weight.", json_schema_extra=POLICY_ONLY
    )

    def takes(self, tensor: str | None) -> bool:
        """Whether the target holds a tensor; one without an id only belongs to `both`."""
        chosen = {"mlp": MLP, "attn": ATTENTION}.get(self.target)
        return chosen is None or tensor in chosen
