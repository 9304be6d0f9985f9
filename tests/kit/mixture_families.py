"""Tiny mixtures of experts of families beside those of `families`."""

from __future__ import annotations

from kit.family_shapes import (
    ENDS,
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV,
    LAYERS,
    MLP,
    OUT,
    QKV,
    TIED,
    VOCABULARY,
    Family,
    Q,
    Shapes,
    norms,
)

#: Of routers that take experts of some groups.
_GROUPED = 8
_NORMS = norms("input_layernorm", "post_attention_layernorm")
_QK_NORMS = norms("self_attn.q_norm", "self_attn.k_norm", width=HEAD_DIM)


def _feed_forward(block: str, width: int) -> Shapes:
    """Gate, up and down of a block."""
    return {
        f"{block}.gate_proj.weight": (width, HIDDEN),
        f"{block}.up_proj.weight": (width, HIDDEN),
        f"{block}.down_proj.weight": (HIDDEN, width),
    }


def _experts(count: int, shared: int) -> Shapes:
    """The experts of a layer, of which every token takes the shared ones."""
    shapes = _feed_forward("mlp.shared_experts", shared * EXPERT_FFN)
    for expert in range(count):
        shapes |= _feed_forward(f"mlp.experts.{expert}", EXPERT_FFN)
    return shapes


def _first_dense(ends: Shapes, attention: Shapes, experts: Shapes) -> Shapes:
    """All tensors, where the first layer has no experts."""
    tensors = dict(ends)
    for layer in range(LAYERS):
        block = experts if layer else MLP
        at = f"model.layers.{layer}"
        tensors |= {f"{at}.{name}": shape for name, shape in {**attention, **block}.items()}
    return tensors


_WINDOWS = ["sliding_attention"] * 3 + ["full_attention"]

MIXTURES = {
    "afmoe": Family(
        "AfmoeForCausalLM",
        "afmoe",
        "afmoe",
        {},
        _first_dense(
            ENDS,
            {
                **QKV,
                **OUT,
                **_QK_NORMS,
                "self_attn.gate_proj.weight": (Q, HIDDEN),
                **_NORMS,
                **norms("pre_mlp_layernorm", "post_mlp_layernorm"),
            },
            {
                "mlp.router.gate.weight": (EXPERTS, HIDDEN),
                "mlp.expert_bias": (EXPERTS,),
                **_experts(EXPERTS, 2),
            },
        ),
        {
            "num_dense_layers": 1,
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "num_shared_experts": 2,
            "moe_intermediate_size": EXPERT_FFN,
            "global_attn_every_n_layers": 4,
            "layer_types": _WINDOWS,
            "sliding_window": 8,
            "mup_enabled": True,
            "route_norm": True,
            "route_scale": 1.5,
            "score_func": "sigmoid",
        },
        {
            "attention.sliding_window": 8,
            "leading_dense_block_count": 1,
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_gating_func": 2,
            "expert_feed_forward_length": EXPERT_FFN,
            "expert_shared_count": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 1.5,
        },
    ),
    "bailing moe 2": Family(
        "BailingMoeV2ForCausalLM",
        "bailing_moe",
        "bailingmoe2",
        {},
        _first_dense(
            {
                "model.word_embeddings.weight": (VOCABULARY, HIDDEN),
                **norms("model.norm"),
                "lm_head.weight": (VOCABULARY, HIDDEN),
            },
            {
                "attention.query_key_value.weight": (Q + 2 * KV, HIDDEN),
                "attention.dense.weight": (HIDDEN, Q),
                **norms("attention.query_layernorm", "attention.key_layernorm", width=HEAD_DIM),
                **_NORMS,
            },
            {
                "mlp.gate.weight": (_GROUPED, HIDDEN),
                "mlp.gate.expert_bias": (_GROUPED,),
                **_experts(_GROUPED, 1),
            },
        ),
        {
            "first_k_dense_replace": 1,
            "num_experts": _GROUPED,
            "num_experts_per_tok": 3,
            "num_shared_experts": 1,
            "moe_intermediate_size": EXPERT_FFN,
            "moe_router_enable_expert_bias": True,
            "n_group": 4,
            "topk_group": 2,
            "norm_topk_prob": True,
            "partial_rotary_factor": 0.5,
            "routed_scaling_factor": 2.5,
            "score_function": "sigmoid",
            "use_bias": False,
            "use_qk_norm": True,
            "use_qkv_bias": False,
            "use_rmsnorm": True,
        },
        {
            "leading_dense_block_count": 1,
            "rope.dimension_count": HEAD_DIM // 2,
            "expert_count": _GROUPED,
            "expert_used_count": 3,
            "expert_gating_func": 2,
            "expert_group_count": 4,
            "expert_group_used_count": 2,
            "expert_feed_forward_length": EXPERT_FFN,
            "expert_shared_feed_forward_length": EXPERT_FFN,
            "expert_shared_count": 1,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
        },
        experts=_GROUPED,
    ),
    "dots 1": Family(
        "Dots1ForCausalLM",
        "dots1",
        "dots1",
        {},
        _first_dense(
            ENDS,
            {**dict.fromkeys(QKV, (Q, HIDDEN)), **OUT, **_QK_NORMS, **_NORMS},
            {
                "mlp.gate.weight": (EXPERTS, HIDDEN),
                "mlp.gate.e_score_correction_bias": (EXPERTS,),
                **_experts(EXPERTS, 2),
            },
        ),
        {
            "first_k_dense_replace": 1,
            "num_key_value_heads": HEADS,
            "n_routed_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "n_shared_experts": 2,
            "moe_intermediate_size": EXPERT_FFN,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "scoring_func": "noaux_tc",
            "sliding_window": None,
        },
        {
            "leading_dense_block_count": 1,
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_feed_forward_length": EXPERT_FFN,
            "expert_shared_count": 2,
            "expert_gating_func": 2,
            "expert_weights_norm": True,
            "expert_weights_scale": 2.5,
        },
    ),
    "granite moe with a shared expert": Family(
        "GraniteMoeSharedForCausalLM",
        "granitemoeshared",
        "granitemoe",
        {
            **QKV,
            **OUT,
            **_NORMS,
            "block_sparse_moe.router.layer.weight": (EXPERTS, HIDDEN),
            "block_sparse_moe.input_linear.weight": (EXPERTS, 2 * EXPERT_FFN, HIDDEN),
            "block_sparse_moe.output_linear.weight": (EXPERTS, HIDDEN, EXPERT_FFN),
            "shared_mlp.input_linear.weight": (2 * FFN, HIDDEN),
            "shared_mlp.output_linear.weight": (HIDDEN, FFN),
        },
        TIED,
        {
            "intermediate_size": EXPERT_FFN,
            "shared_intermediate_size": FFN,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "embedding_multiplier": 6.0,
            "attention_multiplier": 0.125,
            "residual_multiplier": 0.5,
            "logits_scaling": 3.0,
        },
        {
            "feed_forward_length": EXPERT_FFN,
            "expert_shared_feed_forward_length": FFN,
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "embedding_scale": 6.0,
            "attention.scale": 0.125,
            "residual_scale": 0.5,
            "logit_scale": 3.0,
        },
        pairs=True,
        without=("head_dim",),
    ),
}
