"""The text models of architectures that also read pictures or sound, in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tamiz_exporters.architecture import Architecture
from tamiz_exporters.expert_weights import DOWN

#: What transformers has where a Gemma 3's ``text_config`` says nothing, as those that were
#: published do.
_GEMMA3 = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}
#: What transformers has where the ``text_config`` says nothing. Those of LLaVA say little.
_LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
_MISTRAL = {
    **_LLAMA,
    "intermediate_size": 14336,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
_QWEN2 = {**_LLAMA, "intermediate_size": 22016, "max_position_embeddings": 32768}
_DEFAULTS = {
    "gemma3_text": _GEMMA3,
    **dict.fromkeys(("llama", "granite"), _LLAMA),
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
}
#: Text models that a model has which may have any.
_ANY = ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "granite")
#: By ``model_type``: the class in transformers, and the ``model_type`` of text models that it may
#: have, first of the one that it has where its ``text_config`` does not say it.
_WITH_PICTURES: dict[str, tuple[str, tuple[str, ...]]] = {
    "aya_vision": ("AyaVisionForConditionalGeneration", ("cohere2",)),
    "gemma3": ("Gemma3ForConditionalGeneration", ("gemma3_text",)),
    "glm4v": ("Glm4vForConditionalGeneration", ("glm4",)),
    "glm4v_moe": ("Glm4vMoeForConditionalGeneration", ("glm4_moe",)),
    "idefics3": ("Idefics3ForConditionalGeneration", ("llama",)),
    "internvl": ("InternVLForConditionalGeneration", ("qwen2", *_ANY)),
    "lfm2_vl": ("Lfm2VlForConditionalGeneration", ("lfm2",)),
    "llama4": ("Llama4ForConditionalGeneration", ("llama4_text",)),
    "llava": ("LlavaForConditionalGeneration", _ANY),
    "llava_next": ("LlavaNextForConditionalGeneration", _ANY),
    "llava_onevision": ("LlavaOnevisionForConditionalGeneration", ("qwen2", *_ANY)),
    "mistral3": ("Mistral3ForConditionalGeneration", ("mistral", "ministral3")),
    "qwen2_audio": ("Qwen2AudioForConditionalGeneration", ("qwen2",)),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", ("qwen2",)),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", ("qwen2",)),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", ("qwen3",)),
    "qwen3_vl_moe": ("Qwen3VLMoeForConditionalGeneration", ("qwen3_moe",)),
    "smolvlm": ("SmolVLMForConditionalGeneration", ("llama",)),
    "voxtral": ("VoxtralForConditionalGeneration", ("llama",)),
}
#: Of these the ``text_config`` may lack fields.
_BRIEF = ("gemma3", "internvl", "llava", "llava_next", "llava_onevision", "qwen2_audio")


def with_pictures(texts: Mapping[str, Architecture]) -> dict[str, dict[str, Architecture]]:
    """The text models by ``model_type`` of the whole model, and by their own.

    Args:
        texts: The architectures of decoders by ``model_type``.
    """
    return {
        whole: {
            text: replace(
                _stacked(texts[text]) if whole == "qwen3_vl_moe" else texts[text],
                model_class=model_class,
                defaults=_DEFAULTS.get(text, {}) if whole in _BRIEF else {},
            )
            for text in of_whole
        }
        for whole, (model_class, of_whole) in _WITH_PICTURES.items()
    }


def _stacked(text: Architecture) -> Architecture:
    """An architecture whose files have the experts of a layer in one tensor, turned.

    What the chosen count is always divided by their sum; ``config.json`` need not say it.
    """
    assert text.mixture is not None
    parts = text.mixture.names.parts
    names = replace(
        text.mixture.names,
        parts={part: f"mlp.experts.{'gate_up_proj' if part != DOWN else part}" for part in parts},
    )
    mixture = replace(text.mixture, names=names, turned=True, normalized=True)
    return replace(text, mixture=mixture)
