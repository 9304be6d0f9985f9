"""What becomes of the fields of Hunyuan in a ``config.json`` of Hugging Face."""

from __future__ import annotations

from tamiz_exporters.source_fields import Field, no_effect, obeyed, refused, required

HUNYUAN_MOE = ("hunyuan_v1_moe",)
HUNYUAN = ("hunyuan_v1_dense", *HUNYUAN_MOE)

HUNYUAN_FIELDS: dict[str, Field] = {
    "moe_topk": obeyed("experts that a token takes", only=HUNYUAN_MOE, harmless=(1,)),
    "num_shared_expert": obeyed(
        "experts that every token takes; 1 where it is missing", only=HUNYUAN_MOE, harmless=(1,)
    ),
    "moe_layer_num_skipped": refused("layers without experts"),
    "use_mixed_mlp_moe": refused("experts beside feed-forward blocks", True),
    "group_limited_greedy": refused("experts of the best groups"),
    "use_cla": refused("layers that share keys and values"),
    "use_mla": refused("keys and values of a latent"),
    "use_rotary_pos_emb": required("layers without rotary embedding"),
    "norm_type": refused("other norms", "rms", "low_precision_layernorm"),
    "add_classification_head": refused("a head of classes"),
    "position_embedding_xdrope": refused("positions in several dimensions"),
    **no_effect("position_embedding_xdrope is read", "xdrope_section"),
    **no_effect("use_cla is read", "cla_share_factor"),
    **no_effect(
        "of heads that are not read", "class_num", "pool_type", "dense_list", "mask_init_id"
    ),
    **no_effect("eos_token_id is read", "eod_token_id"),
    **no_effect("pad_token_id is read", "pad_id", "unused_token_id"),
    **no_effect("vocab_size is read", "org_vocab_size"),
    **no_effect("the tokenizer has them", "im_start_id", "im_end_id", "im_newline_id"),
    **no_effect("the tokenizer has them", "text_start_id", "text_end_id"),
    **no_effect("how the model is run", "enable_lm_head_fp32", "moe_drop_tokens"),
    **no_effect(
        "training only", "moe_random_routing_dropped_token", "capacity_factor", "norm_init"
    ),
}
