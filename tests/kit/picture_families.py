"""Tiny text models of decoders that also read pictures."""

from __future__ import annotations

from kit.family_shapes import (
    DOWN,
    ENDS,
    EXPERT_FFN,
    EXPERTS,
    FFN,
    HEAD_DIM,
    HIDDEN,
    MLP,
    OUT,
    QKV,
    TIED,
    Family,
    Shapes,
    biases,
    norms,
)

_LLAMA: Shapes = {
    **QKV,
    **OUT,
    **MLP,
    **norms("input_layernorm", "post_attention_layernorm"),
}
_QWEN3: Shapes = {**_LLAMA, **norms("self_attn.q_norm", "self_attn.k_norm", width=HEAD_DIM)}
_QWEN2: Shapes = {**_LLAMA, **biases(QKV)}
#: Of an expert, so that no matrix is square: transformers turns what does not fit.
_WIDTH = 48
_QWEN3_MOE: Shapes = {
    **QKV,
    **OUT,
    **norms("input_layernorm", "post_attention_layernorm"),
    **norms("self_attn.q_norm", "self_attn.k_norm", width=HEAD_DIM),
    "mlp.gate.weight": (EXPERTS, HIDDEN),
    "mlp.experts.gate_up_proj": (EXPERTS, HIDDEN, 2 * _WIDTH),
    "mlp.experts.down_proj": (EXPERTS, _WIDTH, HIDDEN),
}
_GLM4: Shapes = {
    **biases(QKV),
    **OUT,
    "mlp.gate_up_proj.weight": (2 * FFN, HIDDEN),
    **DOWN,
    **norms("input_layernorm", "post_attention_layernorm"),
    **norms("post_self_attn_layernorm", "post_mlp_layernorm"),
}
_GLM4_MOE: Shapes = {
    **biases(QKV),
    **OUT,
    **norms("input_layernorm", "post_attention_layernorm"),
    "mlp.gate.weight": (EXPERTS, HIDDEN),
    "mlp.gate.e_score_correction_bias": (EXPERTS,),
    **{
        f"{at}.{name}.weight": (HIDDEN, EXPERT_FFN) if name == "down_proj" else (EXPERT_FFN, HIDDEN)
        for at in (*(f"mlp.experts.{e}" for e in range(EXPERTS)), "mlp.shared_experts")
        for name in ("gate_proj", "up_proj", "down_proj")
    },
}
_SECTIONS_OF_GLM = {
    "rope_parameters": {
        "mrope_section": [1, 2, 1],
        "partial_rotary_factor": 0.5,
        "rope_type": "default",
        "rope_theta": 10000.0,
    }
}
_SECTIONS = {"mrope_section": [3, 3, 2], "rope_type": "default", "rope_theta": 10000.0}
_TOWER = {"depth": 1, "hidden_size": 32, "num_heads": 2, "intermediate_size": 32}
_QWEN_TOWER = {**_TOWER, "out_hidden_size": HIDDEN}
_TOWER_OF_PATCHES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}

PICTURES = {
    "gemma 3 with pictures": Family(
        "Gemma3ForConditionalGeneration",
        "gemma3_text",
        "",
        {
            **_QWEN3,
            **norms("pre_feedforward_layernorm", "post_feedforward_layernorm"),
        },
        TIED,
        {"sliding_window": 8, "query_pre_attn_scalar": 256, "hidden_act": None},
        prefix="model.language_model.",
        whole={"model_type": "gemma3", "vision_config": _TOWER_OF_PATCHES},
    ),
    "qwen 2.5 vl": Family(
        "Qwen2_5_VLForConditionalGeneration",
        "qwen2_5_vl_text",
        "qwen2vl",
        _QWEN2,
        ENDS,
        {"rope_parameters": {**_SECTIONS, "rope_type": "default", "type": "mrope"}},
        {"rope.dimension_sections": [3, 3, 2, 0]},
        prefix="model.language_model.",
        whole={"model_type": "qwen2_5_vl", "vision_config": _QWEN_TOWER},
    ),
    "qwen 3 vl": Family(
        "Qwen3VLForConditionalGeneration",
        "qwen3_vl_text",
        "qwen3vl",
        _QWEN3,
        ENDS,
        {"rope_parameters": {**_SECTIONS, "mrope_interleaved": True}},
        {"rope.dimension_sections": [3, 3, 2, 0], "n_deepstack_layers": 0},
        prefix="model.language_model.",
        whole={
            "model_type": "qwen3_vl",
            "vision_config": {**_QWEN_TOWER, "deepstack_visual_indexes": []},
        },
    ),
    "qwen 3 vl moe": Family(
        "Qwen3VLMoeForConditionalGeneration",
        "qwen3_vl_moe_text",
        "qwen3vlmoe",
        _QWEN3_MOE,
        ENDS,
        {
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": _WIDTH,
            "rope_parameters": {**_SECTIONS, "mrope_interleaved": True},
        },
        {
            "expert_count": EXPERTS,
            "expert_used_count": 2,
            "expert_feed_forward_length": _WIDTH,
            "rope.dimension_sections": [3, 3, 2, 0],
            "n_deepstack_layers": 0,
        },
        seed=1,
        prefix="model.language_model.",
        whole={
            "model_type": "qwen3_vl_moe",
            "vision_config": {**_QWEN_TOWER, "deepstack_visual_indexes": []},
        },
    ),
    "glm 4.1v": Family(
        "Glm4vForConditionalGeneration",
        "glm4v_text",
        "",
        _GLM4,
        ENDS,
        {"attention_bias": True, **_SECTIONS_OF_GLM},
        prefix="model.language_model.",
        whole={"model_type": "glm4v", "vision_config": _QWEN_TOWER},
        without=("head_dim",),
    ),
    "glm 4.5v": Family(
        "Glm4vMoeForConditionalGeneration",
        "glm4v_moe_text",
        "",
        ({**biases(QKV), **_LLAMA}, *[_GLM4_MOE] * 3),
        ENDS,
        {
            "attention_bias": True,
            "n_routed_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": EXPERT_FFN,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            **_SECTIONS_OF_GLM,
        },
        prefix="model.language_model.",
        whole={"model_type": "glm4v_moe", "vision_config": _QWEN_TOWER},
    ),
    "llava next with a mistral": Family(
        "LlavaNextForConditionalGeneration",
        "mistral",
        "",
        _LLAMA,
        ENDS,
        {"sliding_window": 8},
        prefix="model.language_model.",
        whole={
            "model_type": "llava_next",
            "vision_config": {**_TOWER_OF_PATCHES, "model_type": "clip_vision_model"},
            "image_token_index": 250,
            "tie_word_embeddings": False,
        },
    ),
    "internvl with a qwen 3": Family(
        "InternVLForConditionalGeneration",
        "qwen3",
        "",
        _QWEN3,
        TIED,
        prefix="model.language_model.",
        whole={
            "model_type": "internvl",
            "vision_config": {
                **_TOWER_OF_PATCHES,
                "model_type": "internvl_vision",
                "image_size": [28, 28],
                "patch_size": [14, 14],
            },
            "image_token_id": 250,
        },
    ),
    "mistral small 3.1": Family(
        "Mistral3ForConditionalGeneration",
        "mistral",
        "mistral3",
        _LLAMA,
        ENDS,
        {"sliding_window": None},
        prefix="model.language_model.",
        whole={
            "model_type": "mistral3",
            "vision_config": {**_TOWER_OF_PATCHES, "model_type": "pixtral", "head_dim": 16},
        },
        pairs=True,
    ),
    "smolvlm": Family(
        "SmolVLMForConditionalGeneration",
        "llama",
        "",
        _LLAMA,
        ENDS,
        prefix="model.text_model.",
        whole={"model_type": "smolvlm", "vision_config": _TOWER_OF_PATCHES},
    ),
}
