"""The architectures with a table of positions in place of rotary embeddings."""

from __future__ import annotations

from tamiz_exporters.activations import GELU_TANH
from tamiz_exporters.architecture import PLAIN_LAYER, QKV, Architecture

GPT_2 = Architecture(
    "GPT2LMHeadModel",
    "gpt2",
    PLAIN_LAYER,
    {
        "self_attn.o_proj": "attn.c_proj",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
        "input_layernorm": "ln_1",
        "post_attention_layernorm": "ln_2",
    },
    last_norm=("ln_f", "output_norm"),
    epsilon_key="layer_norm_epsilon",
    hf_fused={"attn.c_attn": QKV},
    gguf_fused={"attn_qkv": QKV},
    layers="h",
    own_keys={
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "max_position_embeddings": "n_positions",
        "intermediate_size": "n_inner",
        "hidden_act": "activation_function",
    },
    turned=("attn.c_attn.weight", "c_proj.weight", "mlp.c_fc.weight"),
    positions="wpe",
    embedding="wte",
    ffn_factor=4,
    activation=GELU_TANH,
    centred=True,
)
OPT = Architecture(
    "OPTForCausalLM",
    "opt",
    PLAIN_LAYER,
    {
        "self_attn.o_proj": "self_attn.out_proj",
        "mlp.up_proj": "fc1",
        "mlp.down_proj": "fc2",
        "input_layernorm": "self_attn_layer_norm",
        "post_attention_layernorm": "final_layer_norm",
    },
    last_norm=("final_layer_norm", "output_norm"),
    epsilon_key="layer_norm_eps",
    own_keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
    positions="embed_positions",
    first_position=2,
    activation="relu",
    defaults={"layer_norm_eps": 1e-5},
    centred=True,
)
