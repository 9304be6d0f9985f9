"""What becomes of the fields of LFM2 in a ``config.json`` of Hugging Face."""

from __future__ import annotations

from tamiz_exporters.source_fields import Field, no_effect, obeyed, refused

LFM2 = ("lfm2", "lfm2_moe")

LFM2_FIELDS: dict[str, Field] = {
    "conv_L_cache": obeyed("tokens that a convolution mixes", only=LFM2),
    "conv_bias": refused("convolutions with biases"),
    "full_attn_idxs": obeyed("layers that attend, where layer_types does not say it", only=LFM2),
    "block_ff_dim": obeyed("another name of intermediate_size", only=LFM2),
    "block_auto_adjust_ff_dim": obeyed("two thirds of the width, unless false", only=LFM2),
    "block_ffn_dim_multiplier": obeyed("of these two thirds", only=LFM2),
    "block_multiple_of": obeyed("what the width is rounded up to", only=LFM2),
    "tie_embedding": obeyed("another name of tie_word_embeddings", only=LFM2),
    **no_effect(
        "transformers ignores it in LFM2",
        "block_dim",
        "block_mlp_init_scale",
        "block_norm_eps",
        "block_out_init_scale",
        "block_use_swiglu",
        "block_use_xavier_init",
        "conv_dim",
        "conv_dim_out",
        "conv_use_xavier_init",
        "use_pos_enc",
    ),
}
