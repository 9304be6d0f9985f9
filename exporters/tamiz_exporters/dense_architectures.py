"""Decoders with a dense feed-forward block, beside Llama's and those in `architectures`."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.architecture import LAYER, NORMS_AROUND, QKV, Architecture

#: Weights that sources keep in one tensor.
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
#: Each block has a norm after it alone.
_NORMS_BEHIND = {
    **{name: stored for name, stored in LAYER.items() if name != "input_layernorm"},
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_OLMO_2 = Architecture(
    "Olmo2ForCausalLM", "olmo2", _NORMS_BEHIND, norms_of_all_heads=True, rope_base=500000.0
)
#: Its layers have windows.
OLMO_3 = replace(
    _OLMO_2,
    model_class="Olmo3ForCausalLM",
    model_type="olmo3",
    global_every=4,
    window=4096,
    local_unscaled=True,
)

#: By `general.architecture`.
DENSE = {
    "olmo2": _OLMO_2,
    "exaone": Architecture(
        "ExaoneForCausalLM",
        "exaone",
        own_names={
            **{f"self_attn.{part}_proj": f"attn.attention.{part}_proj" for part in "qkv"},
            "self_attn.o_proj": "attn.attention.out_proj",
            "mlp.gate_proj": "mlp.c_fc_0",
            "mlp.up_proj": "mlp.c_fc_1",
            "mlp.down_proj": "mlp.c_proj",
            "input_layernorm": "ln_1",
            "post_attention_layernorm": "ln_2",
        },
        last_norm=("ln_f", "output_norm"),
        embedding="wte",
        layers="h",
        own_keys={
            "num_hidden_layers": "num_layers",
            "hidden_act": "activation_function",
            "rms_norm_eps": "layer_norm_epsilon",
        },
        rope_base=500000.0,
    ),
    "exaone4": Architecture(
        "Exaone4ForCausalLM",
        "exaone4",
        _NORMS_BEHIND,
        global_every=4,
        turns_in_windows=True,
    ),
    "internlm2": Architecture(
        "InternLM2ForCausalLM",
        "internlm2",
        own_names={
            "self_attn.o_proj": "attention.wo",
            "mlp.gate_proj": "feed_forward.w1",
            "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2",
            "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
        },
        hf_fused={"attention.wqkv": QKV},
        embedding="tok_embeddings",
        head="output",
        by_head=True,
        pairs=True,
    ),
    "minicpm": Architecture(
        "MiniCPMForCausalLM", "minicpm", pairs=True, depth_scaled=True, multiplied=True
    ),
    "seed_oss": Architecture(
        "SeedOssForCausalLM",
        "seed_oss",
        LAYER | {"post_attention_layernorm": "post_attention_norm"},
    ),
    "glm4": Architecture(
        "Glm4ForCausalLM",
        "glm4",
        LAYER | NORMS_AROUND,
        {
            "post_attention_layernorm": "post_self_attn_layernorm",
            "pre_feedforward_layernorm": "post_attention_layernorm",
            "post_feedforward_layernorm": "post_mlp_layernorm",
        },
        hf_fused={"mlp.gate_up_proj": GATE_UP},
        gguf_fused={"ffn_up": GATE_UP},
        pairs=True,
        pairs_everywhere=True,
        rotated=0.5,
    ),
}

#: By `model_type`, of models that GGUF calls a llama.
HF_DENSE = {"internlm3": Architecture("InternLM3ForCausalLM", "internlm3", pairs=True)}
