"""The architectures of Hunyuan, whose norms of queries and keys stand behind the rotation."""

from __future__ import annotations

from dataclasses import replace

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.expert_weights import DOWN, GATE, UP
from tamiz_exporters.mixture_traits import QWEN_EXPERTS, MixtureTraits

_DENSE = Architecture(
    "HunYuanDenseV1ForCausalLM",
    "hunyuan_v1_dense",
    own_names={
        "self_attn.q_norm": "self_attn.query_layernorm",
        "self_attn.k_norm": "self_attn.key_layernorm",
    },
    norms_behind=True,
)

#: By `general.architecture`.
HUNYUAN = {
    "hunyuan-dense": _DENSE,
    "hunyuan-moe": replace(
        _DENSE,
        model_class="HunYuanMoEV1ForCausalLM",
        model_type="hunyuan_v1_moe",
        defaults={"num_shared_expert": 1},
        mixture=MixtureTraits(
            replace(
                QWEN_EXPERTS,
                router="mlp.gate.wg",
                shared={part: f"mlp.shared_mlp.{part}" for part in (GATE, UP, DOWN)},
            ),
            top_key="moe_topk",
            normalized=True,
            shared_key="num_shared_expert",
            shared_counts=True,
        ),
    ),
}
