"""What becomes of the fields of Llama 4 in a ``config.json`` of Hugging Face."""

from __future__ import annotations

from tamiz_exporters.source_fields import Field, no_effect, obeyed

LLAMA_4 = ("llama4_text",)

LLAMA_4_FIELDS: dict[str, Field] = {
    "intermediate_size_mlp": obeyed("width of blocks without experts", only=LLAMA_4),
    "interleave_moe_layer_step": obeyed("of so many layers the last has experts", only=LLAMA_4),
    "moe_layers": obeyed("layers with experts", only=LLAMA_4),
    "attention_chunk_size": obeyed("a sequence is no longer than that", only=LLAMA_4),
    "attn_temperature_tuning": obeyed("whether floor_scale counts", only=LLAMA_4),
    "floor_scale": obeyed("a sequence is shorter than that", only=LLAMA_4),
    **no_effect("sequences are shorter than floor_scale", "attn_scale"),
    **no_effect("how weights are quantised", "for_llm_compressor"),
}
