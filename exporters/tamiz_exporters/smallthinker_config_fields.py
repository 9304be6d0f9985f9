"""What becomes of the fields of SmallThinker in a ``config.json`` of Hugging Face."""

from __future__ import annotations

from tamiz_exporters.source_fields import Field, no_effect, obeyed, refused, required

SMALLTHINKER = ("smallthinker",)

SMALLTHINKER_FIELDS: dict[str, Field] = {
    "sliding_window_size": obeyed("another name of sliding_window", only=SMALLTHINKER),
    "sliding_window_layout": obeyed("1 where a layer has the window", only=SMALLTHINKER),
    "rope_layout": obeyed(
        "1 where a layer has a rotary embedding: as sliding_window_layout, or everywhere without "
        "windows",
        only=SMALLTHINKER,
    ),
    "moe_num_primary_experts": obeyed("another name of num_experts", only=SMALLTHINKER),
    "moe_num_active_primary_experts": obeyed(
        "another name of num_experts_per_tok", only=SMALLTHINKER
    ),
    "moe_ffn_hidden_size": obeyed("another name of moe_intermediate_size", only=SMALLTHINKER),
    "moe_primary_router_apply_softmax": obeyed(
        "scores are a softmax in place of sigmoids", only=SMALLTHINKER
    ),
    "moe_enable_early_router": required("routers that read what experts read"),
    "moe_shared_primary_experts": refused("experts that every token takes"),
    "moe_enable_secondary_experts": refused("experts of experts"),
    **no_effect("transformers' code gives every layer experts", "moe_layer_layout"),
    **no_effect("of experts of experts", "moe_num_secondary_experts", "moe_secondary_expert_size"),
    **no_effect("of layers without experts", "dense_ffn_hidden_size"),
    **no_effect("how the model is run or named", "model_name", "profile_sparsity"),
}
