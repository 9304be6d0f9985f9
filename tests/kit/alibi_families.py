"""Tiny decoders with a bias by distance: BLOOM, and MPT with heads that are no power of two."""

from __future__ import annotations

from typing import Any

from kit.family_shapes import HEADS, HIDDEN, VOCABULARY, Family, Q, Shapes, biases, norms
from kit.tiny_safetensors import CONTEXT

_WIDE = 4 * HIDDEN
_BLOOM: Shapes = biases(
    {
        "self_attention.query_key_value.weight": (3 * Q, HIDDEN),
        "self_attention.dense.weight": (HIDDEN, Q),
        "mlp.dense_h_to_4h.weight": (_WIDE, HIDDEN),
        "mlp.dense_4h_to_h.weight": (HIDDEN, _WIDE),
        **norms("input_layernorm", "post_attention_layernorm"),
    }
)
#: Of MPT, with 6 heads of length 16.
_HEADS, _WIDTH = 6, 96
_MPT: Shapes = {
    "attn.Wqkv.weight": (3 * _WIDTH, _WIDTH),
    "attn.out_proj.weight": (_WIDTH, _WIDTH),
    "ffn.up_proj.weight": (4 * _WIDTH, _WIDTH),
    "ffn.down_proj.weight": (_WIDTH, 4 * _WIDTH),
    **norms("norm_1", "norm_2", width=_WIDTH),
}
_ATTENTION: dict[str, Any] = {
    "alibi": True,
    "alibi_bias_max": 8,
    "attn_type": "multihead_attention",
    "clip_qkv": None,
    "qk_ln": False,
}
_WITHOUT = ("hidden_act", "head_dim", "rms_norm_eps")
#: The converter writes none of these.
_NO_KEYS = dict.fromkeys(
    (
        "attention.layer_norm_rms_epsilon",
        "attention.key_length",
        "attention.value_length",
        "rope.freq_base",
    )
)

WITH_ALIBI = {
    "bloom": Family(
        "BloomForCausalLM",
        "bloom",
        "bloom",
        _BLOOM,
        {
            "model.word_embeddings.weight": (VOCABULARY, HIDDEN),
            **biases(norms("model.word_embeddings_layernorm")),
            **biases(norms("model.ln_f")),
        },
        {
            "n_layer": 4,
            "n_head": HEADS,
            "seq_length": CONTEXT,
            "num_key_value_heads": HEADS,
            "intermediate_size": _WIDE,
            "layer_norm_epsilon": 1e-5,
            "apply_residual_connection_post_layernorm": False,
        },
        {"attention.layer_norm_epsilon": 1e-5, **_NO_KEYS},
        prefix="transformer.",
        layers="h",
        without=_WITHOUT,
    ),
    "mpt": Family(
        "MPTForCausalLM",
        "mpt",
        "mpt",
        _MPT,
        {"model.wte.weight": (VOCABULARY, _WIDTH), **norms("model.norm_f", width=_WIDTH)},
        {
            "d_model": _WIDTH,
            "n_layers": 4,
            "n_heads": _HEADS,
            "max_seq_len": CONTEXT,
            "hidden_size": _WIDTH,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _HEADS,
            "intermediate_size": 4 * _WIDTH,
            "layer_norm_epsilon": 1e-5,
            "expansion_ratio": 4,
            "no_bias": True,
            "attn_config": _ATTENTION,
        },
        {
            "embedding_length": _WIDTH,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.max_alibi_bias": 8.0,
            **_NO_KEYS,
        },
        prefix="transformer.",
        layers="blocks",
        without=_WITHOUT,
    ),
}
