"""Tiny dense decoders of families beside those of `families`."""

from __future__ import annotations

from kit.family_shapes import (
    DOWN,
    ENDS,
    FFN,
    HEAD_DIM,
    HIDDEN,
    KV,
    MLP,
    OUT,
    QKV,
    TIED,
    VOCABULARY,
    Family,
    Q,
    Shapes,
    biases,
    norms,
)

_LLAMA: Shapes = {**QKV, **OUT, **MLP, **norms("input_layernorm", "post_attention_layernorm")}
_EXAONE: Shapes = {
    "attn.attention.q_proj.weight": (Q, HIDDEN),
    "attn.attention.k_proj.weight": (KV, HIDDEN),
    "attn.attention.v_proj.weight": (KV, HIDDEN),
    "attn.attention.out_proj.weight": (HIDDEN, Q),
    "mlp.c_fc_0.weight": (FFN, HIDDEN),
    "mlp.c_fc_1.weight": (FFN, HIDDEN),
    "mlp.c_proj.weight": (HIDDEN, FFN),
    **norms("ln_1", "ln_2"),
}
_INTERNLM: Shapes = {
    "attention.wqkv.weight": (Q + 2 * KV, HIDDEN),
    "attention.wo.weight": (HIDDEN, Q),
    "feed_forward.w1.weight": (FFN, HIDDEN),
    "feed_forward.w2.weight": (HIDDEN, FFN),
    "feed_forward.w3.weight": (FFN, HIDDEN),
    **norms("attention_norm", "ffn_norm"),
}

_UNGATED: Shapes = {**QKV, **OUT, "mlp.up_proj.weight": (FFN, HIDDEN), **DOWN}
_CENTRED = biases(norms("input_layernorm", "post_attention_layernorm"))
_CENTRED_ENDS = ENDS | biases(norms("model.norm"))

DENSE = {
    "nemotron": Family(
        "NemotronForCausalLM",
        "nemotron",
        "nemotron",
        {**_UNGATED, **_CENTRED},
        _CENTRED_ENDS,
        {"hidden_act": "relu2", "norm_eps": 1e-5, "partial_rotary_factor": 0.5},
        {
            "attention.layer_norm_rms_epsilon": None,
            "attention.layer_norm_epsilon": 1e-5,
            "rope.dimension_count": HEAD_DIM // 2,
            "rope.scaling.type": "none",
        },
        without=("rms_norm_eps",),
        from_one=True,
    ),
    "jais 2": Family(
        "Jais2ForCausalLM",
        "jais2",
        "jais2",
        {**biases(_UNGATED), **_CENTRED},
        _CENTRED_ENDS,
        {
            "hidden_act": "relu2",
            "layer_norm_eps": 1e-5,
            "attention_bias": True,
            "mlp_bias": True,
        },
        {
            "attention.layer_norm_rms_epsilon": None,
            "attention.layer_norm_epsilon": 1e-5,
            "rope.dimension_count": HEAD_DIM,
        },
        without=("rms_norm_eps",),
    ),
    "ministral 3": Family(
        "Ministral3ForCausalLM",
        "ministral3",
        "mistral3",
        _LLAMA,
        ENDS,
        {
            "rope_theta": None,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 16.0,
                "original_max_position_embeddings": 16,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            },
        },
        {
            "rope.freq_base": 10000.0,
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 16.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.scaling.yarn_log_multiplier": 1.0,
            "attention.temperature_scale": 0.1,
        },
        pairs=True,
    ),
    "orion": Family(
        "OrionForCausalLM",
        "orion",
        "orion",
        {**QKV, **OUT, **MLP, **_CENTRED},
        _CENTRED_ENDS,
        {},
        {
            "attention.layer_norm_rms_epsilon": None,
            "attention.layer_norm_epsilon": 1e-5,
            "attention.key_length": None,
            "attention.value_length": None,
            "rope.freq_base": None,
            "tensor_data_layout": "Meta AI original pth",
        },
        without=("head_dim",),
    ),
    "exaone 3.5": Family(
        "ExaoneForCausalLM",
        "exaone",
        "exaone",
        _EXAONE,
        {
            "model.wte.weight": (VOCABULARY, HIDDEN),
            **norms("model.ln_f"),
            "lm_head.weight": (VOCABULARY, HIDDEN),
        },
        {
            "num_layers": 4,
            "activation_function": "silu",
            "layer_norm_epsilon": 1e-5,
        },
        {"rope.dimension_count": HEAD_DIM},
        prefix="transformer.",
        layers="h",
        without=("num_hidden_layers", "hidden_act", "rms_norm_eps", "head_dim"),
    ),
    "internlm 2": Family(
        "InternLM2ForCausalLM",
        "internlm2",
        "internlm2",
        _INTERNLM,
        {
            "model.tok_embeddings.weight": (VOCABULARY, HIDDEN),
            **norms("model.norm"),
            "output.weight": (VOCABULARY, HIDDEN),
        },
        {"bias": False, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
        pairs=True,
    ),
    "internlm 3": Family(
        "InternLM3ForCausalLM",
        "internlm3",
        "llama",
        {**biases(QKV), **biases(OUT), **biases(MLP), **norms("input_layernorm")}
        | norms("post_attention_layernorm"),
        ENDS,
        {"qkv_bias": True, "bias": True},
        pairs=True,
    ),
    "minicpm": Family(
        "MiniCPMForCausalLM",
        "minicpm",
        "minicpm",
        _LLAMA,
        TIED,
        {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16},
        {"embedding_scale": 12.0, "residual_scale": 0.7, "logit_scale": 4.0},
        pairs=True,
    ),
    "minicpm 4": Family(
        "MiniCPMForCausalLM",
        "minicpm",
        "minicpm",
        _LLAMA,
        ENDS,
        {
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 32,
            "rope_scaling": {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0],
                "long_factor": [1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0],
                "original_max_position_embeddings": 512,
            },
        },
        {
            "embedding_scale": 12.0,
            "residual_scale": 0.7,
            "logit_scale": 2.0,
            "rope.scaling.type": "longrope",
        },
        pairs=True,
        factors=(1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0),
    ),
}
