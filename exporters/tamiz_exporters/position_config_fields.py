"""What becomes of the fields of GPT-2 and OPT in a ``config.json`` of Hugging Face."""

from __future__ import annotations

from tamiz_exporters.source_fields import Field, no_effect, obeyed, obeyed_by, refused, required

_GPT_2, _OPT = ("gpt2",), ("opt",)

POSITION_FIELDS: dict[str, Field] = {
    "n_embd": obeyed("width of the residual stream", only=_GPT_2),
    "n_layer": obeyed_by((*_GPT_2, "bloom"), "number of layers"),
    "n_head": obeyed("number of heads", only=(*_GPT_2, "bloom")),
    "n_positions": obeyed("limit of a sequence", only=_GPT_2),
    "n_inner": obeyed("width of the feed-forward block; null: 4 n_embd", only=_GPT_2),
    "activation_function": obeyed("another name of hidden_act", only=("exaone", *_GPT_2, *_OPT)),
    "ffn_dim": obeyed("width of the feed-forward block", only=_OPT),
    "scale_attn_weights": required("scores without a factor"),
    "scale_attn_by_inverse_layer_idx": refused("scores that depend on the layer"),
    "do_layer_norm_before": required("norms behind attention and feed-forward"),
    "_remove_final_layer_norm": refused("a decoder without a last norm"),
    "enable_bias": required("layers without biases"),
    "layer_norm_elementwise_affine": required("norms without weights"),
    **no_effect("the width of the embedding is checked where it is read", "word_embed_proj_dim"),
    **no_effect("the order of operations only", "reorder_and_upcast_attn"),
    **no_effect("n_positions is read", "n_ctx"),
    **no_effect("how the model is trained", "layerdrop", "dropout", "activation_dropout"),
    **no_effect(
        "of a head that is not read",
        "summary_activation",
        "summary_first_dropout",
        "summary_proj_to_labels",
        "summary_type",
        "summary_use_proj",
    ),
    **no_effect("training only", "attn_pdrop", "init_std"),
}
