"""Tiny SmallThinkers: one with windows as the 21B, one with rotary embedding everywhere."""

from __future__ import annotations

from typing import Any

from kit.family_shapes import (
    EXPERT_FFN,
    EXPERTS,
    HIDDEN,
    OUT,
    QKV,
    TIED,
    Family,
    Shapes,
    norms,
)

#: llama.cpp rotates every layer of a model of 4.
_DEPTH = 6
#: The only window that llama.cpp knows.
_WINDOW = 4096
_LAYOUT = [0, 1, 1, 1, 0, 1]


def _layer() -> Shapes:
    at = "block_sparse_moe"
    shapes = {**QKV, **OUT, **norms("input_layernorm", "post_attention_layernorm")}
    shapes |= {f"{at}.primary_router.weight": (EXPERTS, HIDDEN)}
    for expert in range(EXPERTS):
        shapes |= {
            f"{at}.experts.{expert}.gate.weight": (EXPERT_FFN, HIDDEN),
            f"{at}.experts.{expert}.up.weight": (EXPERT_FFN, HIDDEN),
            f"{at}.experts.{expert}.down.weight": (HIDDEN, EXPERT_FFN),
        }
    return shapes


def _smallthinker(fields: dict[str, Any], keys: dict[str, Any], seed: int) -> Family:
    return Family(
        "SmallThinkerForCausalLM",
        "smallthinker",
        "smallthinker",
        _layer(),
        TIED,
        {
            "intermediate_size": EXPERT_FFN,
            "moe_num_primary_experts": EXPERTS,
            "moe_num_active_primary_experts": 2,
            "moe_ffn_hidden_size": EXPERT_FFN,
            "moe_enable_early_router": True,
            "sliding_window_size": _WINDOW,
            **fields,
        },
        {
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_feed_forward_length": EXPERT_FFN,
            **keys,
        },
        seed,
        depth=_DEPTH,
        without=("hidden_act",),
    )


SMALLTHINKERS = {
    "smallthinker with windows": _smallthinker(
        {
            "sliding_window_layout": _LAYOUT,
            "rope_layout": _LAYOUT,
            "moe_primary_router_apply_softmax": True,
        },
        {"attention.sliding_window": _WINDOW, "expert_gating_func": 1},
        0,
    ),
    "smallthinker without windows": _smallthinker(
        {
            "sliding_window_layout": [0] * _DEPTH,
            "rope_layout": [1] * _DEPTH,
            "moe_primary_router_apply_softmax": False,
        },
        {"expert_gating_func": 2},
        0,
    ),
}
