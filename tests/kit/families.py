"""Tiny decoders of many families, by name."""

from __future__ import annotations

from kit.alibi_families import WITH_ALIBI
from kit.apertus_families import APERTUS
from kit.dense_families import DENSE
from kit.falcon_families import FALCONS
from kit.family_shapes import (
    DOWN,
    ENDS,
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV,
    KV_HEADS,
    LAYERS,
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
from kit.hunyuan_families import HUNYUANS
from kit.llama4_families import LLAMA_4
from kit.mixture_families import MIXTURES
from kit.picture_families import PICTURES
from kit.position_families import WITH_POSITIONS
from kit.smallthinker_families import SMALLTHINKERS
from kit.state_families import STATES

_OLMO: Shapes = {
    **QKV,
    **OUT,
    **MLP,
    **norms("self_attn.q_norm", width=Q),
    **norms("self_attn.k_norm", width=KV),
    **norms("post_attention_layernorm", "post_feedforward_layernorm"),
}
_LFM2_KINDS = ["conv", "full_attention", "conv", "full_attention"]


def _experts(block: str) -> Shapes:
    """Gate, down and up of all experts of a layer."""
    shapes = {"w1": (EXPERT_FFN, HIDDEN), "w2": (HIDDEN, EXPERT_FFN), "w3": (EXPERT_FFN, HIDDEN)}
    return {
        f"{block}.experts.{expert}.{part}.weight": shape
        for part, shape in shapes.items()
        for expert in range(EXPERTS)
    }


def _lfm2(layer: int) -> Shapes:
    """A layer of LFM2 with experts but in the first."""
    shapes = norms("operator_norm", "ffn_norm")
    if _LFM2_KINDS[layer] == "conv":
        shapes |= {
            "conv.conv.weight": (HIDDEN, 1, 3),
            "conv.in_proj.weight": (3 * HIDDEN, HIDDEN),
            "conv.out_proj.weight": (HIDDEN, HIDDEN),
        }
    else:
        shapes |= {**QKV, "self_attn.out_proj.weight": (HIDDEN, Q)}
        shapes |= norms("self_attn.q_layernorm", "self_attn.k_layernorm", width=HEAD_DIM)
    if layer == 0:
        widths = {"w1": (FFN, HIDDEN), "w2": (HIDDEN, FFN), "w3": (FFN, HIDDEN)}
        return shapes | {f"feed_forward.{part}.weight": size for part, size in widths.items()}
    shapes |= {"feed_forward.gate.weight": (EXPERTS, HIDDEN)}
    return shapes | {"feed_forward.expert_bias": (EXPERTS,)} | _experts("feed_forward")


_WINDOWS_OF_FOUR = ["sliding_attention"] * 3 + ["full_attention"]
_MULTI_HEADED = {name: (Q, HIDDEN) for name in QKV}
_COHERE: Shapes = {**QKV, **OUT, **MLP, **norms("input_layernorm")}
_COHERE_FIELDS = {"layer_norm_eps": 1e-5, "logit_scale": 0.25}
_COHERE_KEYS = {
    "attention.layer_norm_epsilon": 1e-5,
    "logit_scale": 0.25,
    "rope.scaling.type": "none",
}
_EXAONE: Shapes = {
    **QKV,
    **OUT,
    **MLP,
    **norms("self_attn.q_norm", "self_attn.k_norm", width=HEAD_DIM),
    **norms("post_attention_layernorm", "post_feedforward_layernorm"),
}
_NEOX = biases(
    {
        "attention.query_key_value.weight": (3 * Q, HIDDEN),
        "attention.dense.weight": (HIDDEN, Q),
        "mlp.dense_h_to_4h.weight": (FFN, HIDDEN),
        "mlp.dense_4h_to_h.weight": (HIDDEN, FFN),
        **norms("input_layernorm", "post_attention_layernorm"),
    }
)
_NEOX_ENDS = {
    "model.embed_in.weight": (VOCABULARY, HIDDEN),
    **biases(norms("model.final_layer_norm")),
    "embed_out.weight": (VOCABULARY, HIDDEN),
}
_NEOX_FIELDS = {
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-5,
    "num_key_value_heads": HEADS,
}

FAMILIES = {
    **PICTURES,
    **DENSE,
    **APERTUS,
    **FALCONS,
    **WITH_ALIBI,
    **HUNYUANS,
    **WITH_POSITIONS,
    **STATES,
    "llama 4": LLAMA_4,
    **MIXTURES,
    **SMALLTHINKERS,
    "olmo 2": Family("Olmo2ForCausalLM", "olmo2", "olmo2", _OLMO, ENDS),
    "olmo 3": Family(
        "Olmo3ForCausalLM",
        "olmo3",
        "olmo2",
        _OLMO,
        ENDS,
        {
            "rope_theta": 500000.0,
            "sliding_window": 8,
            "layer_types": _WINDOWS_OF_FOUR,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 8.0,
                "original_max_position_embeddings": 16,
                "attention_factor": 1.2079441541679836,
                "beta_fast": 32,
                "beta_slow": 1,
            },
        },
        {
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": [
                kind != "full_attention" for kind in _WINDOWS_OF_FOUR
            ],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 8.0,
            "rope.scaling.original_context_length": 16,
            "rope.scaling.yarn_attn_factor": 1.2079441541679836,
            "rope.scaling.yarn_beta_fast": 32.0,
            "rope.scaling.yarn_beta_slow": 1.0,
            "rope.freq_base_swa": 500000.0,
        },
    ),
    "lfm2 MoE": Family(
        "Lfm2MoeForCausalLM",
        "lfm2_moe",
        "lfm2moe",
        {},
        {
            "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
            "model.embedding_norm.weight": (HIDDEN,),
            **{f"model.layers.{n}.{k}": v for n in range(LAYERS) for k, v in _lfm2(n).items()},
        },
        {
            "norm_eps": 1e-5,
            "conv_L_cache": 3,
            "layer_types": _LFM2_KINDS,
            "num_dense_layers": 1,
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": EXPERT_FFN,
        },
        {
            "attention.head_count_kv": [KV_HEADS if "full" in kind else 0 for kind in _LFM2_KINDS],
            "shortconv.l_cache": 3,
            "leading_dense_block_count": 1,
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_gating_func": 2,
            "expert_feed_forward_length": EXPERT_FFN,
        },
    ),
    "minimax m2": Family(
        "MiniMaxM2ForCausalLM",
        "minimax_m2",
        "minimax-m2",
        {
            **QKV,
            **OUT,
            **norms("input_layernorm", "post_attention_layernorm"),
            **norms("self_attn.q_norm", width=Q),
            **norms("self_attn.k_norm", width=KV),
            "block_sparse_moe.gate.weight": (EXPERTS, HIDDEN),
            "block_sparse_moe.e_score_correction_bias": (EXPERTS,),
            **_experts("block_sparse_moe"),
        },
        ENDS,
        {
            "intermediate_size": EXPERT_FFN,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "rotary_dim": HEAD_DIM // 2,
        },
        {
            "rope.dimension_count": HEAD_DIM // 2,
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_gating_func": 2,
            "expert_feed_forward_length": EXPERT_FFN,
        },
    ),
    "command r": Family(
        "CohereForCausalLM", "cohere", "command-r", _COHERE, TIED, _COHERE_FIELDS, _COHERE_KEYS
    ),
    "command r7b": Family(
        "Cohere2ForCausalLM",
        "cohere2",
        "cohere2",
        _COHERE,
        TIED,
        {**_COHERE_FIELDS, "sliding_window": 8, "layer_types": _WINDOWS_OF_FOUR},
        {**_COHERE_KEYS, "attention.sliding_window": 8},
    ),
    "pythia": Family(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        "gptneox",
        _NEOX,
        _NEOX_ENDS,
        {**_NEOX_FIELDS, "rotary_pct": 0.25, "rotary_emb_base": 5000.0, "rope_theta": None},
        {
            "attention.layer_norm_epsilon": 1e-5,
            "attention.head_count_kv": HEADS,
            "rope.dimension_count": HEAD_DIM // 4,
            "rope.freq_base": 5000.0,
            "use_parallel_residual": True,
        },
        prefix="gpt_neox.",
    ),
    "gpt neox, one after the other": Family(
        "GPTNeoXForCausalLM",
        "gpt_neox",
        "gptneox",
        _NEOX,
        _NEOX_ENDS,
        {**_NEOX_FIELDS, "rotary_pct": 1.0, "use_parallel_residual": False},
        {
            "attention.layer_norm_epsilon": 1e-5,
            "attention.head_count_kv": HEADS,
            "use_parallel_residual": False,
        },
        prefix="gpt_neox.",
    ),
    "exaone 4": Family(
        "Exaone4ForCausalLM",
        "exaone4",
        "exaone4",
        _EXAONE,
        ENDS,
        {"sliding_window": 8, "layer_types": _WINDOWS_OF_FOUR, "sliding_window_pattern": "LLLG"},
        {
            "attention.sliding_window": 8,
            "attention.sliding_window_pattern": [each[0] == "s" for each in _WINDOWS_OF_FOUR],
        },
    ),
    "exaone 4 without windows": Family(
        "Exaone4ForCausalLM",
        "exaone4",
        "exaone4",
        _EXAONE,
        ENDS,
        {"sliding_window": None, "layer_types": ["full_attention"] * LAYERS},
    ),
    "seed oss": Family(
        "SeedOssForCausalLM",
        "seed_oss",
        "seed_oss",
        {**biases(QKV), **OUT, **MLP, **norms("input_layernorm", "post_attention_layernorm")},
        ENDS,
        {"attention_bias": True, "attention_out_bias": False},
    ),
    "phi 2": Family(
        "PhiForCausalLM",
        "phi",
        "phi2",
        biases(
            {
                **_MULTI_HEADED,
                "self_attn.dense.weight": (HIDDEN, Q),
                "mlp.fc1.weight": (FFN, HIDDEN),
                "mlp.fc2.weight": (HIDDEN, FFN),
                **norms("input_layernorm"),
            }
        ),
        {
            "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
            **biases(norms("model.final_layernorm")),
            **biases({"lm_head.weight": (VOCABULARY, HIDDEN)}),
        },
        {
            "hidden_act": "gelu_new",
            "partial_rotary_factor": 0.5,
            "layer_norm_eps": 1e-5,
            "num_key_value_heads": HEADS,
        },
        {"attention.layer_norm_epsilon": 1e-5, "rope.dimension_count": HEAD_DIM // 2},
        seed=1,
    ),
    "stablelm 2": Family(
        "StableLmForCausalLM",
        "stablelm",
        "stablelm",
        {
            **biases(QKV),
            **OUT,
            **MLP,
            **biases(norms("input_layernorm", "post_attention_layernorm")),
        },
        ENDS | biases(norms("model.norm")),
        {"partial_rotary_factor": 0.25, "layer_norm_eps": 1e-5, "use_qkv_bias": True},
        {
            "attention.layer_norm_epsilon": 1e-5,
            "rope.dimension_count": HEAD_DIM // 4,
            "use_parallel_residual": False,
        },
    ),
    "starcoder 2": Family(
        "Starcoder2ForCausalLM",
        "starcoder2",
        "starcoder2",
        biases(
            {
                **QKV,
                **OUT,
                "mlp.c_fc.weight": (FFN, HIDDEN),
                "mlp.c_proj.weight": (HIDDEN, FFN),
                **norms("input_layernorm", "post_attention_layernorm"),
            }
        ),
        TIED | biases(norms("model.norm")),
        {"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, "use_bias": True},
        {"attention.layer_norm_epsilon": 1e-5},
    ),
    "glm 4": Family(
        "Glm4ForCausalLM",
        "glm4",
        "glm4",
        {
            **biases(QKV),
            **OUT,
            "mlp.gate_up_proj.weight": (2 * FFN, HIDDEN),
            **DOWN,
            **norms("input_layernorm", "post_attention_layernorm"),
            **norms("post_self_attn_layernorm", "post_mlp_layernorm"),
        },
        ENDS,
        {"attention_bias": True, "partial_rotary_factor": 0.5},
        {"rope.dimension_count": HEAD_DIM // 2},
    ),
}
