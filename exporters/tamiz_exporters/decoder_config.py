"""What a decoder is made of: its shape, how its layers attend, and weights that stay packed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from tamiz_ops.mamba_reference import Mamba2Sizes
from tamiz_ops.recurrence_reference import DeltaNetSizes
from tamiz_ops.scan_reference import ScanSizes


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
class Heads:
    """Heads of keys and values.

    Attributes:
        count: How many.
        size: Length D of a head, as of a query's.
        one_projection: Whether keys and values are made by one matrix.
    """

    count: int
    size: int
    one_projection: bool = False


@dataclass(frozen=True)
class LayerAttention:
    """How one layer attends.

    Attributes:
        rotary: The rotary embedding of q and k; None for none.
        window: Keys that a query sees at most, itself included; 0 for all before it.
        shares: The layer before it whose keys and values it reads; None: it has its own.
        heads: Its heads of keys and values; None for those of the decoder.
    """

    rotary: Rotary | None
    window: int = 0
    shares: int | None = None
    heads: Heads | None = None


@dataclass(frozen=True)
class Latent:
    """Keys and values that are made of a latent of low rank, see `latent_graph`.

    Attributes:
        rank: R, elements of the latent of a token.
        rope: Elements of a query that rotate, and of the one key of a token that rotates.
        nope: Elements of a query, and of a head's key, that do not.
        value_dim: Elements of a head's value.
        query_rank: Elements of the latent that queries are made of; 0: they are made of the
            residual stream.
        epsilon: ε of the norms of latents.
    """

    rank: int
    rope: int
    nope: int
    value_dim: int
    query_rank: int
    epsilon: float

    @property
    def cached(self) -> int:
        """Elements of what is kept of a token, which all heads share."""
        return self.rope + self.rank


@dataclass(frozen=True)
class Growth:
    """Queries that grow with their position p: times 1 + factor · ln(1 + ⌊p / span⌋).

    Attributes:
        factor: Of the logarithm.
        span: Positions from one step to the next; the first have 1.
        steps: How many steps the longest sequence has.
    """

    factor: float
    span: int
    steps: int


@dataclass(frozen=True)
class ShortConvolution:
    """A layer that mixes its last tokens in place of attention, see `convolution_graph`.

    Attributes:
        taps: L, tokens that it mixes.
    """

    taps: int


@dataclass(frozen=True)
class DeltaNet:
    """A gated delta net in place of attention, see `delta_net_graph`.

    Attributes:
        sizes: Its heads and its convolution.
        tiled: Whether value head h belongs to key head h mod key heads; otherwise the value heads
            of a key head stand side by side.
    """

    sizes: DeltaNetSizes
    tiled: bool = False


@dataclass(frozen=True)
class Mamba2:
    """A selective state space in place of attention, see `mamba_graph`.

    Attributes:
        sizes: Its heads and its convolution.
        normed: Whether its output is normed, the heads of each group together.
        norm_first: Whether the norm comes before the gate.
        limits: Least and largest step dt.
        input_scale: Factor on its input.
        part_scales: Factors on z, x, B, C and dt.
        output_scale: Factor on its output.
    """

    sizes: Mamba2Sizes
    normed: bool = True
    norm_first: bool = False
    limits: tuple[float, float] = (0.0, math.inf)
    input_scale: float = 1.0
    part_scales: tuple[float, ...] = (1.0,) * 5
    output_scale: float = 1.0


@dataclass(frozen=True)
class Mamba:
    """A selective state space of Mamba's first version in place of attention, see `scan_graph`.

    Attributes:
        sizes: Its channels and their states.
        taps: Tokens that its convolution mixes.
        rank: Length of what dt is made of.
        epsilon: ε of norms of what dt is made of, of B and of C; 0: these are not normed.
        weighed: Whether these norms have weights.
    """

    sizes: ScanSizes
    taps: int
    rank: int
    epsilon: float = 0.0
    weighed: bool = False


@dataclass(frozen=True)
class SideBySide:
    """Attention and a selective state space of the same input, whose outputs are added.

    Attributes:
        attention: The attention.
        mamba: The state space.
        input_scale: Factor on the input of the attention.
        output_scale: Factor on its output.
    """

    attention: LayerAttention
    mamba: Mamba2
    input_scale: float = 1.0
    output_scale: float = 1.0


@dataclass(frozen=True)
class NoMixer:
    """A layer that is a feed-forward block alone."""


#: How a layer mixes tokens.
Mixer = LayerAttention | ShortConvolution | DeltaNet | Mamba | Mamba2 | SideBySide | NoMixer


@dataclass(frozen=True)
class Experts:
    """A mixture of experts in place of a feed-forward block.

    Attributes:
        layers: Which layers have it.
        count: E, experts of a layer.
        top: Experts that a token takes.
        width: Width of an expert's feed-forward block.
        score: What the router makes of its scores: ``softmax`` of all or ``sigmoid`` of each,
            before the choice, or ``softmax_of_chosen``, after it.
        normalize: Whether the weights of the chosen experts are divided by their sum.
        scale: Factor on these weights.
        shared_width: Width of the expert that every token takes; 0 for none.
        shared_gate: Whether that expert's output counts the sigmoid of a score of its own.
        biased: Whether the router adds numbers to the scores, for the choice alone.
        groups: Groups of experts that stand side by side.
        top_groups: Groups of which a token takes experts: those with the largest sums of their
            two best scores.
        beside: Whether they stand beside the feed-forward block, see `gemma_graph`.
        scales_input: Whether what an expert reads is multiplied by its weight, not what it gives.
        early: Whether the router reads the input of its layer, before all norms.
    """

    layers: frozenset[int]
    count: int
    top: int
    width: int
    score: str = "softmax"
    normalize: bool = False
    scale: float = 1.0
    shared_width: int = 0
    shared_gate: bool = False
    biased: bool = False
    groups: int = 1
    top_groups: int = 1
    beside: bool = False
    scales_input: bool = False
    early: bool = False


@dataclass(frozen=True)
class Streams:
    """Several residual streams, see `stream_graph`.

    Attributes:
        count: n, streams.
        hidden: H, width of a stream.
        rank: Of the path beside attention.
        deviations: By layer, z: gates count that are this many standard deviations above their
            mean; None: all do.
        scaled: Whether a scale is on what meets the input of a layer.
    """

    count: int
    hidden: int
    rank: int
    deviations: tuple[float | None, ...]
    scaled: bool = True


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    Attributes:
        heads: Number of query heads; 0 where no layer attends.
        kv_heads: Number of key/value heads; divides `heads`. 1 with a latent.
        head_dim: Length D of one head; `Latent.cached` with a latent, 0 where no layer attends.
        epsilon: ε of the norms.
        layers: How each layer mixes tokens. Layers with the same `Rotary` share its tables.
        scale: Factor on the scores; 0 for 1/sqrt(D).
        score_cap: Soft cap c of the scores, which become c · tanh(scores / c); 0 for none.
        logit_cap: Soft cap of the logits; 0 for none.
        embedding_scale: Factor on the embedding.
        activation: f of the feed-forward block, of `activations.ACTIVATIONS`.
        gate_scale: Factor on the gate of the feed-forward block.
        down_scale: Factor on what the feed-forward block gives.
        one_block: Whether a layer that mixes tokens has no feed-forward block behind it.
        residual_scale: Factor on what attention and feed-forward add to the residual stream.
        logit_divisor: What logits are divided by.
        experts: The mixture of experts of some layers; None for none.
        bidirectional: Whether tokens see those behind them, as in an embedder.
        latent: What keys and values are made of; None where each has a matrix of its own.
        centred: Whether norms are LayerNorms, which take the mean off; otherwise RMSNorms.
        parallel: Whether attention and feed-forward stand side by side, both beside x.
        slopes: Of each query head, by the distance of a key, see `alibi`; empty for none.
        unit_heads: Whether single queries and keys that rotate are normed without weights.
        norms_behind: Whether norms of single queries and keys stand behind the rotation, see
            `rotary_norms`.
        growth: How queries grow with their position; None: they do not.
        streams: The residual streams; None where there is one.
        normed_values: Whether values are normed without a weight, as in Gemma 3n and 4.
        input_width: P, width of the inputs of single layers, see `gemma_graph`; 0 for none.
    """

    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    layers: tuple[Mixer, ...]
    scale: float = 0.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0
    activation: str = "silu"
    gate_scale: float = 1.0
    down_scale: float = 1.0
    one_block: bool = False
    residual_scale: float = 1.0
    logit_divisor: float = 1.0
    experts: Experts | None = None
    bidirectional: bool = False
    latent: Latent | None = None
    centred: bool = False
    parallel: bool = False
    streams: Streams | None = None
    normed_values: bool = False
    input_width: int = 0
    growth: Growth | None = None
    unit_heads: bool = False
    norms_behind: bool = False
    slopes: tuple[float, ...] = ()

    @property
    def attentions(self) -> tuple[LayerAttention, ...]:
        """How the layers that attend do it."""
        found = (attention_of(layer) for layer in self.layers)
        return tuple(attention for attention in found if attention is not None)

    def heads_of(self, layer: LayerAttention | None) -> Heads:
        """The heads of keys and values of a layer; None for one that has none of its own."""
        own = None if layer is None else layer.heads
        return own or Heads(self.kv_heads, self.head_dim)

    def group_of(self, layer: LayerAttention) -> int:
        """Query heads of a layer that share a head of keys."""
        return self.heads // self.heads_of(layer).count


def attention_of(layer: Mixer) -> LayerAttention | None:
    """How a layer attends; None where it does not."""
    if isinstance(layer, SideBySide):
        return layer.attention
    return layer if isinstance(layer, LayerAttention) else None


def mamba_of(layer: Mixer) -> Mamba2 | None:
    """The selective state space of a layer; None where it has none."""
    if isinstance(layer, SideBySide):
        return layer.mamba
    return layer if isinstance(layer, Mamba2) else None


@dataclass(frozen=True)
class Packed:
    """A weight ``[n, k]`` in the format of its source.

    Attributes:
        tensor: ``uint8 [tiles, tile bytes]``.
        format: The format's name in `tamiz_ops.formats`.
        n: Outputs.
        k: Inputs.
        experts: Of how many experts it has the outputs, one expert after the other; 0: of none.
    """

    tensor: ir.TensorProtocol
    format: str
    n: int
    k: int
    experts: int = 0

    def attributes(self) -> dict[str, Any]:
        """Attributes of the op that multiplies with it, or looks rows up."""
        sizes = {"n": self.n, "k": self.k} | ({"experts": self.experts} if self.experts else {})
        return {"format": self.format, **sizes}
