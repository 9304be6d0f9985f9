"""A tiny Llama 4: layers with experts and without, with rotary embedding and without."""

from __future__ import annotations

from kit.family_shapes import (
    ENDS,
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEAD_DIM,
    HIDDEN,
    OUT,
    QKV,
    Family,
    Shapes,
    norms,
)


def _block(name: str, width: int) -> Shapes:
    return {
        f"{name}.gate_proj.weight": (width, HIDDEN),
        f"{name}.up_proj.weight": (width, HIDDEN),
        f"{name}.down_proj.weight": (HIDDEN, width),
    }


_ATTENTION: Shapes = {**QKV, **OUT, **norms("input_layernorm", "post_attention_layernorm")}
_DENSE: Shapes = {**_ATTENTION, **_block("feed_forward", FFN)}
_MIXED: Shapes = {
    **_ATTENTION,
    **_block("feed_forward.shared_expert", EXPERT_FFN),
    "feed_forward.router.weight": (EXPERTS, HIDDEN),
    "feed_forward.experts.gate_up_proj": (EXPERTS, HIDDEN, 2 * EXPERT_FFN),
    "feed_forward.experts.down_proj": (EXPERTS, EXPERT_FFN, HIDDEN),
}
LLAMA_4 = Family(
    "Llama4ForCausalLM",
    "llama4_text",
    "llama4",
    (_DENSE, _MIXED, _DENSE, _MIXED),
    ENDS,
    {
        "intermediate_size": EXPERT_FFN,
        "intermediate_size_mlp": FFN,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 256,
        "floor_scale": 128,
        "use_qk_norm": True,
        "rope_theta": 500000.0,
    },
    {
        "feed_forward_length": FFN,
        "expert_feed_forward_length": EXPERT_FFN,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
        "interleave_moe_layer_step": 2,
        "rope.dimension_count": HEAD_DIM,
    },
)
