"""The architectures with a bias by distance (ALiBi) in place of positions: BLOOM and MPT."""

from __future__ import annotations

from tamiz_exporters.activations import GELU_TANH
from tamiz_exporters.architecture import PLAIN_LAYER, QKV, Architecture

#: Largest exponent of the slopes.
_EXPONENT = 8.0

#: By `general.architecture`.
WITH_ALIBI = {
    "bloom": Architecture(
        "BloomForCausalLM",
        "bloom",
        PLAIN_LAYER,
        {
            "self_attn.o_proj": "self_attention.dense",
            "mlp.up_proj": "mlp.dense_h_to_4h",
            "mlp.down_proj": "mlp.dense_4h_to_h",
        },
        last_norm=("ln_f", "output_norm"),
        epsilon_key="layer_norm_epsilon",
        hf_fused={"self_attention.query_key_value": QKV},
        gguf_fused={"attn_qkv": QKV},
        layers="h",
        own_keys={
            "hidden_size": "n_embed",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "seq_length",
        },
        defaults={"layer_norm_epsilon": 1e-5},
        embedding="word_embeddings",
        embedding_norm=("word_embeddings_layernorm", "token_embd_norm"),
        by_head=True,
        ffn_factor=4,
        context=2048,
        activation=GELU_TANH,
        centred=True,
        alibi=_EXPONENT,
    ),
    "mpt": Architecture(
        "MPTForCausalLM",
        "mpt",
        PLAIN_LAYER,
        {
            "self_attn.o_proj": "attn.out_proj",
            "mlp.up_proj": "ffn.up_proj",
            "mlp.down_proj": "ffn.down_proj",
            "input_layernorm": "norm_1",
            "post_attention_layernorm": "norm_2",
        },
        last_norm=("norm_f", "output_norm"),
        epsilon_key="layer_norm_epsilon",
        hf_fused={"attn.Wqkv": QKV},
        gguf_fused={"attn_qkv": QKV},
        layers="blocks",
        own_keys={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        defaults={"layer_norm_epsilon": 1e-5},
        embedding="wte",
        ffn_factor=4,
        context=2048,
        activation="gelu",
        centred=True,
        alibi=_EXPONENT,
    ),
}
