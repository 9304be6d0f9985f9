"""What becomes of the fields of Gemma 3n and Gemma 4 in a ``config.json`` of Hugging Face."""

from __future__ import annotations

from tamiz_exporters.source_fields import Field, no_effect, obeyed

#: With several residual streams.
STREAMS = ("gemma3n_text",)
GEMMA_4 = ("gemma4_text",)
LAYER_INPUTS = (*STREAMS, *GEMMA_4)

GEMMA_FIELDS: dict[str, Field] = {
    "altup_num_inputs": obeyed("residual streams", only=STREAMS),
    "altup_active_idx": obeyed("the stream that layers run on: the first", only=STREAMS),
    "altup_correct_scale": obeyed(only=STREAMS),
    "hidden_size_per_layer_input": obeyed("width of the input of a layer", only=LAYER_INPUTS),
    "laurel_rank": obeyed("of the path beside attention", only=STREAMS),
    "activation_sparsity_pattern": obeyed(
        "by layer, the share of gates that are 0 if they are normally distributed", only=STREAMS
    ),
    "num_kv_shared_layers": obeyed(
        "the last layers, which read keys and values of others", only=LAYER_INPUTS
    ),
    "global_head_dim": obeyed("length of a head in layers that see all keys", only=GEMMA_4),
    "num_global_key_value_heads": obeyed(
        "of such layers, where attention_k_eq_v is true", only=GEMMA_4
    ),
    "per_layer_config": obeyed(
        "head_dim and num_key_value_heads of such layers, in place of the two", only=GEMMA_4
    ),
    "attention_k_eq_v": obeyed("such layers make values of the product of keys", only=GEMMA_4),
    "use_double_wide_mlp": obeyed(
        "feed-forward blocks are twice as wide where keys are those of another layer",
        only=GEMMA_4,
    ),
    "enable_moe_block": obeyed("experts beside each feed-forward block", only=GEMMA_4),
    "top_k_experts": obeyed("experts that a token takes", only=GEMMA_4),
    **no_effect("the weights have the number of tokens", "vocab_size_per_layer_input"),
    **no_effect("training only", "altup_coef_clip", "altup_lr_multiplier"),
}
