"""Tiny Hunyuans, whose norms of queries and keys stand behind the rotation."""

from __future__ import annotations

from typing import Any

from kit.family_shapes import (
    ENDS,
    EXPERT_FFN,
    EXPERTS,
    HEAD_DIM,
    HIDDEN,
    LAYERS,
    MLP,
    OUT,
    QKV,
    TIED,
    Family,
    Shapes,
    norms,
)

_ATTENTION: Shapes = {
    **QKV,
    **OUT,
    **norms("self_attn.query_layernorm", "self_attn.key_layernorm", width=HEAD_DIM),
    **norms("input_layernorm", "post_attention_layernorm"),
}
_ALPHA = 50.0
#: As the converter writes a base that alpha stretches.
_BASE = 10000.0 * _ALPHA ** (HEAD_DIM / (HEAD_DIM - 2))
_FIELDS: dict[str, Any] = {
    "attention_head_dim": HEAD_DIM,
    "use_qk_norm": True,
    "use_cla": False,
    "rope_scaling": {"alpha": _ALPHA, "factor": 1.0, "type": "dynamic"},
}


def _feed_forward(block: str) -> Shapes:
    return {
        f"{block}.gate_proj.weight": (EXPERT_FFN, HIDDEN),
        f"{block}.up_proj.weight": (EXPERT_FFN, HIDDEN),
        f"{block}.down_proj.weight": (HIDDEN, EXPERT_FFN),
    }


def _experts() -> Shapes:
    shapes = {"mlp.gate.wg.weight": (EXPERTS, HIDDEN), **_feed_forward("mlp.shared_mlp")}
    for expert in range(EXPERTS):
        shapes |= _feed_forward(f"mlp.experts.{expert}")
    return shapes


HUNYUANS = {
    "hunyuan": Family(
        "HunYuanDenseV1ForCausalLM",
        "hunyuan_v1_dense",
        "hunyuan-dense",
        _ATTENTION | MLP,
        TIED,
        _FIELDS,
        {"rope.freq_base": _BASE, "rope.scaling.type": "none", "rope.scaling.factor": 1.0},
    ),
    "hunyuan moe": Family(
        "HunYuanMoEV1ForCausalLM",
        "hunyuan_v1_moe",
        "hunyuan-moe",
        _ATTENTION | _experts(),
        ENDS,
        {
            "use_qk_norm": True,
            "intermediate_size": EXPERT_FFN,
            "moe_intermediate_size": [EXPERT_FFN] * LAYERS,
            "moe_topk": [2] * LAYERS,
            "num_experts": EXPERTS,
            "num_shared_expert": [1] * LAYERS,
            "use_mixed_mlp_moe": True,
        },
        {
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_feed_forward_length": EXPERT_FFN,
            "expert_shared_feed_forward_length": EXPERT_FFN,
            "expert_shared_count": 1,
        },
        seed=1,  # two experts of another are nearly as good
    ),
}
