"""The architectures that are read from GGUF, and what tells them apart."""

from __future__ import annotations

from dataclasses import dataclass, field

_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
#: Each block has a norm before it and one after it.
_NORMS_AROUND = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class Architecture:
    """What the decoder of one architecture has.

    Attributes:
        model_class: Its class in transformers.
        model_type: Its name in Hugging Face's ``config.json``.
        names: A layer's tensors in GGUF → their names in transformers.
        pairs: Whether the rows of q and k are stored with rotary pairs as neighbours (2i, 2i+1).
        fused: Whether q, k and v are one tensor, and gate and up another one.
        activation: Of the feed-forward block, ``silu`` or ``gelu_tanh``.
        scales_embedding: Whether the embedding is multiplied by the square root of its width.
        global_every: Where layers have a sliding window: of so many layers the last sees all keys;
            0 where every layer has the window, None where windows are not supported.
        local_rope_base: Rotary base of the layers with a window; 0: that of all layers.
        no_rope_every: Of so many layers the last has no rotary embedding; 0: all have one.
    """

    model_class: str
    model_type: str
    names: dict[str, str] = field(default_factory=lambda: _LAYER)
    pairs: bool = False
    fused: bool = False
    activation: str = "silu"
    scales_embedding: bool = False
    global_every: int | None = None
    local_rope_base: float = 0.0
    no_rope_every: int = 0


#: By `general.architecture`.
ARCHITECTURES = {
    "llama": Architecture("LlamaForCausalLM", "llama", pairs=True, global_every=0),
    "qwen2": Architecture("Qwen2ForCausalLM", "qwen2"),
    "qwen3": Architecture("Qwen3ForCausalLM", "qwen3"),
    "phi3": Architecture("Phi3ForCausalLM", "phi3", fused=True, global_every=0),
    "smollm3": Architecture("SmolLM3ForCausalLM", "smollm3", pairs=True, no_rope_every=4),
    "gemma": Architecture(
        "GemmaForCausalLM", "gemma", activation="gelu_tanh", scales_embedding=True
    ),
    "gemma3": Architecture(
        "Gemma3ForCausalLM",
        "gemma3_text",
        _LAYER | _NORMS_AROUND,
        activation="gelu_tanh",
        scales_embedding=True,
        global_every=6,
        local_rope_base=10000.0,
    ),
}

_EXPERTS = "a mixture of experts: its layers choose some of many feed-forward blocks for each token"

#: What tamiz' decoder graph lacks for architectures that are known, by `general.architecture`.
MISSING = {
    "gemma2": "soft caps: its attention scores and logits pass through a tanh",
    **dict.fromkeys(("qwen2moe", "qwen3moe", "olmoe", "mixtral", "gpt-oss"), _EXPERTS),
    **dict.fromkeys(("deepseek2", "glm4moe", "granitemoe"), _EXPERTS),
    **dict.fromkeys(("mamba", "mamba2", "rwkv6", "rwkv7", "jamba"), "layers without attention"),
    **dict.fromkeys(("gpt2", "gptneox", "bloom", "starcoder2"), "layer norms with a mean"),
}
