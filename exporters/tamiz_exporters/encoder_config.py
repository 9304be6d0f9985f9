"""What an encoder is made of: its shape, how its layers attend, and what lies behind it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from tamiz_exporters.decoder_config import Rotary


class Positions(Enum):
    """Where a table of positions is looked up."""

    COLUMNS = "column of the token"
    AFTER_PADDING = "tokens before it that are not padding, and the id of padding + 1"
    NONE = "no table"


@dataclass(frozen=True, eq=False)
class Disentangled:
    """Scores of DeBERTa: content to position, position to content.

    Attributes:
        buckets: ``int64 [2·L - 1]``: rows of the table by query - key + L - 1.
        parts: Which scores are added to those of content to content: ``c2p``, ``p2c``.
        span: Rows of the table on one side.
    """

    buckets: np.ndarray
    parts: tuple[str, ...]
    span: int


@dataclass(frozen=True)
class EncoderLayer:
    """One layer.

    Attributes:
        weights: What the names of its weights begin with; layers may share them.
        rotary: The rotary embedding of q and k; None for none.
        reach: Keys that a query sees on each side; 0 for all.
    """

    weights: str
    rotary: Rotary | None = None
    reach: int = 0


def rotary_of(base: float, head_dim: int) -> Rotary:
    """A rotary embedding of whole heads."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return Rotary((1.0 / np.float32(base) ** exponents).astype(np.float32))


@dataclass(frozen=True)
class Head:
    """What makes logits of the hidden states.

    Attributes:
        activations: After each of its linear layers; empty for none.
        pooling: ``cls``, the first token, or ``mean``.
        norm: Whether a norm lies before the last linear layer.
        labels: Number of logits.
    """

    activations: tuple[str, ...]
    pooling: str
    norm: bool
    labels: int


@dataclass(frozen=True)
class EncoderConfig:
    """Shape of an encoder.

    Attributes:
        hidden: H, width of the residual stream.
        heads: Heads.
        head_dim: Length D of one head.
        scale: What scores are multiplied by.
        epsilon: ε of the norms.
        centred: Whether norms subtract the mean: LayerNorm; otherwise RMSNorm.
        activation: f of the feed-forward block, of `activations.ACTIVATIONS`.
        gated: Whether the feed-forward block is f(x·Wg) · (x·Wu).
        layers: The layers.
        norm_first: Whether norms lie before the blocks, and one behind all; otherwise after the
            sum of each block and its input.
        positions: Where positions are looked up.
        padding: The id of padding, which positions may begin behind.
        types: Kinds of tokens that the run tells apart; 1: all tokens get the same vector.
        bias: Whether a bias by distance, ``float32 [1, heads, 2·L - 1]`` by key - query + L - 1, is
            added to scores. Without a table of positions, its ends hold for greater distances.
        disentangled: Scores of DeBERTa; None for none.
        head: None where the output is the hidden states.
    """

    hidden: int
    heads: int
    head_dim: int
    scale: float
    epsilon: float
    centred: bool
    activation: str
    gated: bool
    layers: tuple[EncoderLayer, ...]
    norm_first: bool
    positions: Positions
    padding: int
    types: int
    bias: bool = False
    disentangled: Disentangled | None = None
    head: Head | None = None
