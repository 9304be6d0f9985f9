"""The text models of architectures that also read pictures, in transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tamiz_exporters.architecture import Architecture

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
#: By ``model_type``: the class in transformers, and the ``model_type`` of the text model.
_WITH_PICTURES = {
    "gemma3": ("Gemma3ForConditionalGeneration", "gemma3_text"),
    "llama4": ("Llama4ForConditionalGeneration", "llama4_text"),
    "mistral3": ("Mistral3ForConditionalGeneration", "mistral"),
    "qwen2_vl": ("Qwen2VLForConditionalGeneration", "qwen2"),
    "qwen2_5_vl": ("Qwen2_5_VLForConditionalGeneration", "qwen2"),
    "qwen3_vl": ("Qwen3VLForConditionalGeneration", "qwen3"),
    "smolvlm": ("SmolVLMForConditionalGeneration", "llama"),
}
#: By ``model_type``: text models of another kind that it may have instead.
OTHER_TEXTS = {"mistral3": ("ministral3",)}


def with_pictures(texts: Mapping[str, Architecture]) -> dict[str, Architecture]:
    """The text models by ``model_type`` of the whole model.

    Args:
        texts: The architectures of decoders by ``model_type``.
    """
    return {
        whole: replace(
            texts[text],
            model_class=model_class,
            defaults=_GEMMA3 if text == "gemma3_text" else {},
        )
        for whole, (model_class, text) in _WITH_PICTURES.items()
    }
