"""What a decoder is made of: its shape, how its layers attend, and weights that stay packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir


@dataclass(frozen=True, eq=False)
class Rotary:
    """A rotary embedding.

    Attributes:
        inverse_frequency: ``float32 [R/2]``, radians per position of the rotary pairs; R ≤ D.
        factor: Of cosine and sine.
        long_frequency: What replaces `inverse_frequency` in runs that reach beyond
            `original_context`; None where nothing does.
        original_context: In tokens.
    """

    inverse_frequency: np.ndarray
    factor: float = 1.0
    long_frequency: np.ndarray | None = None
    original_context: int = 0


@dataclass(frozen=True)
class LayerAttention:
    """How one layer attends.

    Attributes:
        rotary: The rotary embedding of q and k; None for none.
        window: Keys that a query sees at most, itself included; 0 for all before it.
    """

    rotary: Rotary | None
    window: int = 0


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    Attributes:
        heads: Number of query heads.
        kv_heads: Number of key/value heads; divides `heads`.
        head_dim: Length D of one head.
        epsilon: ε of the norms.
        layers: How each layer attends. Layers with the same `Rotary` share its tables.
        scale: Factor on the scores; 0 for 1/sqrt(D).
        score_cap: Soft cap c of the scores, which become c · tanh(scores / c); 0 for none.
        logit_cap: Soft cap of the logits; 0 for none.
        embedding_scale: Factor on the embedding.
        activation: f of the feed-forward block, of `activations.ACTIVATIONS`.
        bidirectional: Whether tokens see those behind them, as in an embedder.
    """

    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    layers: tuple[LayerAttention, ...]
    scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    activation: str = "silu"
    bidirectional: bool = False


@dataclass(frozen=True)
class Packed:
    """A weight ``[n, k]`` in the format of its source.

    Attributes:
        tensor: ``uint8 [tiles, tile bytes]``.
        format: The format's name in `tamiz_ops.formats`.
        n: Outputs.
        k: Inputs.
    """

    tensor: ir.TensorProtocol
    format: str
    n: int
    k: int

    def attributes(self) -> dict[str, Any]:
        """Attributes of the op that multiplies with it, or looks rows up."""
        return {"format": self.format, "n": self.n, "k": self.k}
