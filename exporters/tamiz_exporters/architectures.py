"""The architectures that are read from GGUF and safetensors, and what tells them apart."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tamiz_exporters.activations import GELU_TANH, SILU

#: A layer's weights: their names in transformers → in GGUF.
_LAYER = {
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
#: Each block has a norm before it and one after it.
_NORMS_AROUND = {
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
        names: A layer's weights: their names in transformers → in GGUF.
        pairs: Whether GGUF stores the rows of q and k with rotary pairs as neighbours (2i, 2i+1).
        fused: Whether q, k and v are one tensor, and gate and up another one.
        activation: Of the feed-forward block, where a source says none.
        scales_embedding: Whether the embedding is multiplied by the square root of its width.
        norms_from_one: Whether transformers stores the weights of norms less 1.
        global_every: Where layers have a sliding window: of so many layers the last sees all keys;
            0 where every layer has the window, None where windows are not supported.
        rope_base: Rotary base where a source says none.
        local_rope_base: Rotary base of the layers with a window; 0: that of all layers.
        no_rope_every: Of so many layers the last has no rotary embedding; 0: all have one.
        window: Window of the layers that have one, in tokens, where a source says none; 0: none.
        soft_caps: Soft caps of scores and of logits where a source says none; None where soft
            caps are not supported.
    """

    model_class: str
    model_type: str
    names: dict[str, str] = field(default_factory=lambda: _LAYER)
    pairs: bool = False
    fused: bool = False
    activation: str = SILU
    scales_embedding: bool = False
    norms_from_one: bool = False
    global_every: int | None = None
    rope_base: float = 10000.0
    local_rope_base: float = 0.0
    no_rope_every: int = 0
    window: int = 0
    soft_caps: tuple[float, float] | None = None


#: What sources call the soft caps of scores and of logits.
SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")

#: By `general.architecture`.
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", pairs=True, global_every=0),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", fused=True, global_every=0),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", pairs=True, no_rope_every=4),
    "gemma": Architecture(
        "GemmaForCausalLM",
        "gemma",
        activation=GELU_TANH,
        scales_embedding=True,
        norms_from_one=True,
    ),
    "gemma2": Architecture(
        "Gemma2ForCausalLM",
        "gemma2",
        _LAYER | _NORMS_AROUND,
        activation=GELU_TANH,
        scales_embedding=True,
        norms_from_one=True,
        global_every=2,
        window=4096,
        soft_caps=(50.0, 30.0),
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        _LAYER | _NORMS_AROUND,
        activation=GELU_TANH,
        scales_embedding=True,
        norms_from_one=True,
        global_every=6,
        local_rope_base=10000.0,
    ),
}

#: By `model_type` of Hugging Face's ``config.json``. GGUF calls a mistral a llama with a window.
HF_ARCHITECTURES = {
    **{each.model_type: each for each in ARCHITECTURES.values()},
    "llama": replace(ARCHITECTURES["llama"], global_every=None),
    "mistral": replace(
        ARCHITECTURES["llama"],
        model_class="MistralForCausalLM",
        model_type="mistral",
        window=4096,
    ),
    **{
        ARCHITECTURES[name].model_type: replace(ARCHITECTURES[name], window=4096)
        for name in ("qwen2", "qwen3", "gemma3")
    },
}

_EXPERTS = "a mixture of experts: its layers choose some of many feed-forward blocks for each token"

#: What tamiz' decoder graph lacks for architectures that are known, by `general.architecture`.
MISSING = {
    **dict.fromkeys(("qwen2moe", "qwen3moe", "olmoe", "mixtral", "gpt-oss"), _EXPERTS),
    **dict.fromkeys(("deepseek2", "glm4moe", "granitemoe"), _EXPERTS),
    **dict.fromkeys(("mamba", "mamba2", "rwkv6", "rwkv7", "jamba"), "layers without attention"),
    **dict.fromkeys(("gpt2", "gptneox", "bloom", "starcoder2"), "layer norms with a mean"),
}
