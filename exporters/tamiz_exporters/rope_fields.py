"""What becomes of each field of a rotary embedding in a ``config.json`` of Hugging Face."""

from __future__ import annotations

from tamiz_exporters.hunyuan_config_fields import HUNYUAN
from tamiz_exporters.source_fields import Field, Treatment, no_effect, obeyed, obeyed_by

#: Text models of models that also read pictures.
_SEEING = (
    *("qwen2", "qwen3", "qwen3_moe", "glm4", "glm4_moe"),
    *("qwen3_5_text", "qwen3_5_moe_text", "qwen3_next"),
)
#: Positions in several dimensions.
_OF_TEXT = Field(
    Treatment.NO_EFFECT, "a token of text has one position in all dimensions", only=_SEEING
)

#: Fields of ``rope_scaling`` and ``rope_parameters``.
ROPE_FIELDS: dict[str, Field] = {
    "rope_type": obeyed(
        "default, linear, llama3, proportional, yarn, longrope; dynamic up to its first limit; "
        "mrope, which is default for text"
    ),
    "type": obeyed("old name of rope_type; a factor alone is linear"),
    "factor": obeyed(),
    "rope_theta": obeyed(),
    "partial_rotary_factor": obeyed(),
    "original_max_position_embeddings": obeyed(),
    "attention_factor": obeyed(),
    "low_freq_factor": obeyed("of llama3"),
    "high_freq_factor": obeyed("of llama3"),
    "beta_fast": obeyed("of yarn"),
    "beta_slow": obeyed("of yarn"),
    "mscale": obeyed("of yarn, with mscale_all_dim"),
    "mscale_all_dim": obeyed("of yarn, with mscale"),
    "llama_4_scaling_beta": Field(
        Treatment.OBEYED,
        "how queries grow with their position",
        (None, 0),
        ("ministral3",),
    ),
    "alpha": obeyed(
        "of dynamic: the base times alpha^(d / (d - 2)), d = rotated elements of a head", HUNYUAN
    ),
    "truncate": obeyed("of yarn"),
    "short_factor": obeyed("of longrope"),
    "long_factor": obeyed("of longrope, where a run reaches beyond the original context"),
    "full_attention": obeyed("the embedding of these layers"),
    "sliding_attention": obeyed_by(
        ["gemma3_text", "gemma3n_text", "gemma4_text", "olmo3"], "the embedding of these layers"
    ),
    "mrope_section": _OF_TEXT,
    "mrope_interleaved": _OF_TEXT,
    **no_effect("that of the model is read", "max_position_embeddings"),
    **no_effect("says how the model was trained", "finetuned"),
}
