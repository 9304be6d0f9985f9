"""What sources say of a bias by distance (ALiBi), and what becomes of fields of BLOOM and MPT."""

from __future__ import annotations

from tamiz_exporters.alibi import alibi_slopes
from tamiz_exporters.architecture import Architecture
from tamiz_exporters.gguf_hyperparameters import Hyperparameters
from tamiz_exporters.hf_fields import Fields
from tamiz_exporters.source_fields import Field, no_effect, obeyed, obeyed_by, refused, required

_BLOOM, _MPT = ("bloom",), ("mpt",)

ALIBI_FIELDS: dict[str, Field] = {
    "n_embed": obeyed("old name of hidden_size", only=_BLOOM),
    "seq_length": obeyed("limit of a sequence; 2048 where it is missing", only=_BLOOM),
    "apply_residual_connection_post_layernorm": refused("residuals behind norms"),
    "d_model": obeyed_by(_MPT, "width of the residual stream"),
    "n_layers": obeyed("number of layers", only=_MPT),
    "n_heads": obeyed("number of heads", only=_MPT),
    "max_seq_len": obeyed("limit of a sequence", only=_MPT),
    "attn_config": obeyed(
        "its alibi, which must be true, and alibi_bias_max; clip_qkv, qk_ln, softmax_scale, "
        "prefix_lm and another attn_type than multihead_attention are refused",
        only=_MPT,
    ),
    "expansion_ratio": refused("feed-forward blocks of another width", 4),
    "no_bias": required("layers with biases"),
    **no_effect("the file has no table of positions", "learned_pos_emb"),
    **no_effect(
        "how the model is trained", "embedding_fraction", "emb_pdrop", "bias_dropout_fusion"
    ),
    **no_effect("how the model is made or run", "init_device", "init_config", "tokenizer_name"),
    **no_effect("the order of operations only", "slow_but_exact", "attention_softmax_in_fp32"),
    **no_effect("softmax takes a constant away", "offset_alibi"),
    **no_effect("the biases that the file has are added", "skip_bias_add", "skip_bias_add_qkv"),
}
#: Fields of ``attn_config`` of MPT.
MPT_ATTENTION_FIELDS: dict[str, Field] = {
    "alibi": obeyed("true"),
    "alibi_bias_max": obeyed("largest exponent of the slopes"),
    "attn_type": refused("one head of keys", "multihead_attention"),
    "clip_qkv": refused("clamped q, k and v"),
    "softmax_scale": refused("another factor on scores"),
    "prefix_lm": refused("attention to later tokens"),
    "qk_ln": refused("norms of queries and keys"),
    **no_effect("how the model is trained, run or named", "attn_pdrop", "attn_impl", "model_type"),
    **no_effect("of several texts in one row", "attn_uses_sequence_id"),
}


def gguf_slopes(of: Hyperparameters, traits: Architecture, heads: int) -> tuple[float, ...]:
    """The slope of each head of a GGUF; none where its architecture has positions.

    Raises:
        TamizError: The file says that there is no bias.
    """
    if not traits.alibi:
        return ()
    most, key = traits.alibi, "attention.max_alibi_bias"
    if of.architecture in _MPT and not (most := of.number(key, 0.0)):
        of.reject(key, "nothing", "a positive number, as there are no other positions")
    return alibi_slopes(heads, most)


def hf_slopes(of: Fields, traits: Architecture, heads: int) -> tuple[float, ...]:
    """The slope of each head of a ``config.json``; arguments as those of `gguf_slopes`.

    Raises:
        TamizError: A value is absurd or not supported.
    """
    if not traits.alibi:
        return ()
    if (group := of.group("attn_config")) is None:
        return alibi_slopes(heads, traits.alibi)
    group = group.obeyed(traits.model_type, MPT_ATTENTION_FIELDS)
    if group.flag("alibi") is False:
        group.reject("alibi", False, "true, as there are no other positions")
    return alibi_slopes(heads, group.number("alibi_bias_max", traits.alibi))
