"""What tells the decoders of architectures apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tamiz_exporters.activations import SILU
from tamiz_exporters.delta_net_weights import DeltaTraits
from tamiz_exporters.mamba_traits import StateSpaceTraits
from tamiz_exporters.mixture_traits import MixtureTraits

#: A layer's weights: their names in the graph, which are those of most in transformers → in GGUF.
LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
#: The same without a gate.
UNGATED = {name: stored for name, stored in LAYER.items() if name != "mlp.gate_proj"}
#: Without norms of single heads.
WITHOUT_HEAD_NORMS = {
    name: stored for name, stored in LAYER.items() if not name.endswith(("q_norm", "k_norm"))
}
#: Without either.
PLAIN_LAYER = {name: stored for name, stored in WITHOUT_HEAD_NORMS.items() if name in UNGATED}
#: Weights of queries, keys and values, which many sources keep in one tensor.
QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
#: Each block has a norm before it and one after it.
NORMS_AROUND = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass(frozen=True)
class Architecture:
    """What the decoder of one architecture has.

    Attributes:
        model_class: Its class in transformers.
        model_type: Its name in Hugging Face's ``config.json``.
        trained_activation: Whether layers have numbers of their activation, see `xielu_weights`.
        alibi: Largest exponent of slopes by distance where a source says none, see `alibi`; 0: the
            decoder has positions.
        unit_heads: Whether queries and keys that rotate are normed without weights, unless a source
            says otherwise.
        chunked: Whether layers with a rotary embedding attend in chunks, see `chunk_fields`.
        norms_behind: Whether norms of single queries and keys stand behind the rotation.
        class_decides: Whether others have its name there, so that its class must be named, too.
        names: A layer's weights: their names in the graph → in GGUF.
        own_names: Those that have other names in transformers than in the graph → these.
        last_norm: The norm before the head, in transformers and in GGUF.
        epsilon_key: ε of the norms in ``config.json``.
        convolves: Whether layers without attention have a short convolution.
        delta: The gated delta nets of layers without attention; None where there are none.
        mamba: The selective state spaces of layers; None where there are none.
        hf_fused: In transformers, a layer's tensors that hold several weights → those weights.
        gguf_fused: Likewise in GGUF.
        own_keys: Keys of ``config.json`` that others call another name: that name → its own.
        turned: What the names of weights end with that transformers stores as ``[K, N]``.
        positions: What transformers calls the table of positions; empty: there is none.
        first_position: Row of the first position in that table.
        embedding: What transformers calls the embedding.
        embedding_norm: The norm of the embedding, in transformers and in GGUF; empty for none.
        head: What transformers calls the head.
        layers: What begins the names of layers there.
        by_head: Whether a tensor of q, k and v has them there for one head of keys after the other.
        multi_query: Whether there is one head of keys, unless ``config.json`` says otherwise.
        ffn_key: Width of the feed-forward block in ``config.json``.
        ffn_factor: That width over the one of the residual stream where ``config.json`` says none;
            0: it must say it.
        ffn_adjusted: Whether it is two thirds of that, unless ``config.json`` says otherwise.
        activation_key: Its activation there.
        gated_heads: See `decoder_weights.DecoderWeights`.
        context: Limit of a sequence where ``config.json`` has none, in tokens; None: it must have
            one.
        pairs: Whether GGUF stores the rows of q and k with rotary pairs as neighbours (2i, 2i+1).
        pairs_everywhere: Whether transformers does so, too.
        activation: Of the feed-forward block, where a source says none; empty: it must say it.
        scales_embedding: Whether the embedding is multiplied by the square root of its width.
        scale_key: What says in ``config.json`` whether it is; empty: it is in any case.
        norms_from_one: Whether transformers stores the weights of norms less 1.
        global_every: Where layers have a sliding window: of so many layers the last sees all keys;
            0 where every layer has the window, None where windows are not supported.
        global_first: Whether the first of them sees all keys, in place of the last.
        rope_base: Rotary base where a source says none.
        rotated: Part of a head that rotates where ``config.json`` says none.
        local_rope_base: Rotary base of the layers with a window; 0: that of all layers.
        local_unscaled: Whether nothing scales the rotary embedding of layers with a window.
        no_rope_every: Of so many layers the last has no rotary embedding; 0: all have one.
        window: Window of the layers that have one, in tokens, where a source says none; 0: none.
        soft_caps: Soft caps of scores and of logits where a source says none; None where soft
            caps are not supported.
        mixture: The mixture of experts in place of feed-forward blocks; None for none.
        norms_of_all_heads: Whether a norm of q or k is one of all its heads together.
        renamed: Names of activations that stand for another one than usual, in ``config.json``.
        sinks: Whether each head has a score that joins the sum of its softmax.
        rope_scaling: ``rope_scaling`` where ``config.json`` says none.
        yarn_truncated: Whether YaRN rounds where its ramp begins and ends, where a GGUF is read.
        multiplied: Whether factors on embedding, scores and residuals and a divisor of logits are
            read.
        latent: Whether keys and values are made of a latent, see `latent_graph`.
        stretches_scores: Whether YaRN has a factor on scores, where a GGUF is read.
        centred: Whether norms take the mean off.
        parallel: Whether attention and feed-forward stand side by side.
        logit_scale: Factor on logits where a source says none; 0: none is read.
        turns_in_windows: Whether only layers with a window have a rotary embedding, where there are
            any.
        defaults: Fields of ``config.json`` where it says nothing.
        depth_scaled: Whether factors on embedding and residuals and a divisor of logits are those
            of MiniCPM, unless a GGUF says others.
        streams: Whether there are several residual streams, see `stream_graph`.
        normed_values: Whether values are normed, layers have inputs, and the last ones read keys
            and values of others, see `gemma_graph`.
        wide_heads: Whether layers that see all keys have heads of another size than the others.
        score_scale: Factor on scores where a source says none; 0: by the length of a head.
    """

    model_class: str
    model_type: str
    names: dict[str, str] = field(default_factory=lambda: LAYER)
    own_names: dict[str, str] = field(default_factory=dict)
    last_norm: tuple[str, str] = ("norm", "output_norm")
    epsilon_key: str = "rms_norm_eps"
    convolves: bool = False
    delta: DeltaTraits | None = None
    mamba: StateSpaceTraits | None = None
    hf_fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    gguf_fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    own_keys: Mapping[str, str] = field(default_factory=dict)
    turned: tuple[str, ...] = ()
    positions: str = ""
    first_position: int = 0
    embedding: str = "embed_tokens"
    embedding_norm: tuple[str, str] = ("", "")
    head: str = "lm_head"
    layers: str = "layers"
    by_head: bool = False
    multi_query: bool = False
    ffn_key: str = "intermediate_size"
    ffn_factor: int = 0
    ffn_adjusted: bool = False
    activation_key: str = "hidden_act"
    gated_heads: bool = False
    context: int | None = None
    pairs: bool = False
    pairs_everywhere: bool = False
    activation: str = SILU
    scales_embedding: bool = False
    scale_key: str = ""
    norms_from_one: bool = False
    global_every: int | None = None
    global_first: bool = False
    rope_base: float = 10000.0
    rotated: float = 1.0
    local_rope_base: float = 0.0
    local_unscaled: bool = False
    no_rope_every: int = 0
    window: int = 0
    soft_caps: tuple[float, float] | None = None
    mixture: MixtureTraits | None = None
    norms_of_all_heads: bool = False
    multiplied: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    sinks: bool = False
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)
    yarn_truncated: bool = True
    latent: bool = False
    stretches_scores: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    depth_scaled: bool = False
    centred: bool = False
    parallel: bool = False
    logit_scale: float = 0.0
    turns_in_windows: bool = False
    streams: bool = False
    normed_values: bool = False
    wide_heads: bool = False
    score_scale: float = 0.0
    trained_activation: bool = False
    alibi: float = 0.0
    unit_heads: bool = False
    chunked: bool = False
    norms_behind: bool = False
    class_decides: bool = False

    @property
    def attends(self) -> bool:
        """Whether any layer attends."""
        return self.mamba is None or not self.mamba.alone
