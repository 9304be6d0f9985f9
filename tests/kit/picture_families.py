"""Tiny text models of decoders that also read pictures."""

from __future__ import annotations

from kit.family_shapes import (
    ENDS,
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
