"""What becomes of fields of a ``config.json`` that describe selective state spaces."""

from __future__ import annotations

from tamiz_exporters.hunyuan_config_fields import HUNYUAN
from tamiz_exporters.source_fields import Field, Treatment, no_effect, obeyed, obeyed_by, refused

GRANITE_HYBRID, FALCON_H1, NEMOTRON_H = "granitemoehybrid", "falcon_h1", "nemotron_h"
MAMBA_2 = "mamba2"
_FIRST = ("mamba", "falcon_mamba")
JAMBA, BAMBA = "jamba", "bamba"
_MIXERS = (NEMOTRON_H, MAMBA_2)
_GROUPED = (GRANITE_HYBRID, FALCON_H1, BAMBA, *_MIXERS)
#: The kinds of models that have them.
MAMBA_KINDS = (*_GROUPED, *_FIRST, JAMBA)
_PREFIXED = (GRANITE_HYBRID, FALCON_H1, BAMBA)
_STATE_SPACE = "of a selective state space"


def _factor(note: str) -> Field:
    return Field(Treatment.OBEYED, note, refused("", 1.0).harmless, (FALCON_H1,))


MAMBA_FIELDS: dict[str, Field] = {
    "mamba_n_heads": obeyed(_STATE_SPACE, only=_PREFIXED),
    "mamba_n_groups": obeyed("groups of heads that share B and C", only=_PREFIXED),
    "mamba_d_head": obeyed("length of a head; auto: what fits mamba_expand", only=_PREFIXED),
    "mamba_d_state": obeyed("length of B and C", only=(*_PREFIXED, JAMBA)),
    "mamba_d_conv": obeyed("tokens that a convolution mixes", only=(*_PREFIXED, JAMBA)),
    "mamba_expand": obeyed("channels over hidden_size", only=(*_PREFIXED, JAMBA)),
    "mamba_d_ssm": obeyed("all heads together", only=(FALCON_H1,)),
    "mamba_rms_norm": obeyed("whether the output is normed", only=(FALCON_H1,)),
    "mamba_norm_before_gate": obeyed(
        "whether that comes before the gate; true where it is missing", only=(FALCON_H1,)
    ),
    "mamba_num_heads": obeyed(_STATE_SPACE, only=(NEMOTRON_H,)),
    "n_groups": obeyed("groups of heads that share B and C", only=_MIXERS),
    "mamba_head_dim": obeyed("length of a head", only=(NEMOTRON_H,)),
    "state_size": obeyed("length of B and C", only=(MAMBA_2, *_FIRST)),
    "expand": obeyed_by(_FIRST, "channels over hidden_size, where intermediate_size is missing"),
    "time_step_rank": obeyed_by(_FIRST, "length of what dt is made of; auto: hidden_size / 16"),
    "mamba_dt_rank": obeyed("length of what dt is made of; auto: hidden_size / 16", only=(JAMBA,)),
    "mamba_inner_layernorms": Field(Treatment.REFUSED, "dt, B and C without norms", (True, None)),
    "attn_layer_indices": obeyed("the layers that attend", only=(BAMBA,)),
    "attn_layer_period": obeyed("every how many layers one attends", only=(JAMBA,)),
    "attn_layer_offset": obeyed("the first layer that attends", only=(JAMBA,)),
    "expert_layer_period": obeyed("every how many layers one has experts", only=(JAMBA,)),
    "expert_layer_offset": obeyed("the first layer with experts", only=(JAMBA,)),
    "mixer_rms_eps": obeyed("ε of norms of dt, B and C", only=("falcon_mamba",)),
    "ssm_state_size": obeyed("length of B and C", only=(NEMOTRON_H,)),
    "conv_kernel": obeyed("tokens that a convolution mixes", only=(*_MIXERS, *_FIRST)),
    "mamba_hidden_act": obeyed("silu", only=(NEMOTRON_H,)),
    "mlp_hidden_act": obeyed("of feed-forward blocks", only=(NEMOTRON_H,)),
    "layer_norm_epsilon": obeyed(
        "another name of rms_norm_eps",
        only=(*_MIXERS, *_FIRST, "exaone", "falcon", "gpt2", "bloom", "mpt"),
    ),
    "attention_head_dim": obeyed("old name of head_dim", only=(NEMOTRON_H, *HUNYUAN)),
    "hybrid_override_pattern": obeyed(
        "a letter by layer: M, *, - and E, a mixture of experts", only=(NEMOTRON_H,)
    ),
    "rms_norm": Field(Treatment.REFUSED, "norms with a mean", (True, None)),
    "num_heads": obeyed_by((MAMBA_2,), "of state spaces; transformers ignores it in LFM2"),
    "layers_block_type": obeyed(
        "by layer mamba or attention, also linear_attention and full_attention; mlp and moe, too, "
        "in Nemotron-H",
        only=(GRANITE_HYBRID, NEMOTRON_H),
    ),
    "time_step_limit": obeyed("least and largest step", only=_GROUPED),
    "position_embedding_type": obeyed("rope, or nope and null for none", only=(GRANITE_HYBRID,)),
    "shared_intermediate_size": obeyed(
        "width of the expert that every token takes, or of the block without experts",
        only=(GRANITE_HYBRID, "granitemoeshared"),
    ),
    "lm_head_multiplier": _factor("factor on logits"),
    "key_multiplier": _factor("factor on keys"),
    "attention_in_multiplier": _factor("factor on the input of attention"),
    "attention_out_multiplier": _factor("factor on the output of attention"),
    "ssm_in_multiplier": _factor("factor on the input of a state space"),
    "ssm_out_multiplier": _factor("factor on its output"),
    "ssm_multipliers": _factor("factors on z, x, B, C and dt"),
    "mlp_multipliers": _factor("factors on the gate and on the output of a feed-forward block"),
    **dict.fromkeys(
        ("mamba_conv_bias", "mamba_proj_bias", "projectors_bias", "use_conv_bias"),
        obeyed_by(MAMBA_KINDS, "the biases that the file has are added"),
    ),
    **no_effect(
        "the state space is computed token by token",
        "mamba_chunk_size",
        "chunk_size",
        "use_mamba_kernels",
        "mamba_ssm_cache_dtype",
        "num_logits_to_keep",
        "use_mambapy",
        "use_falcon_mambapy",
        "use_associative_scan",
        "calc_logits_for_entire_prompt",
        "fused_add_norm",
    ),
    **no_effect("half of each head rotates, as in transformers", "attn_rotary_emb"),
    **no_effect("old names in the first files of Mamba", "d_inner", "ssm_cfg"),
    **no_effect("the weights have the number of tokens", "pad_vocab_size_multiple"),
    **no_effect(
        "training only",
        "z_loss_coefficient",
        "time_step_init_scheme",
        "time_step_scale",
        "time_step_floor",
        "time_step_max",
        "time_step_min",
        "rescale_prenorm_residual",
        "residual_in_fp32",
        "mamba_dt_init_floor",
        "mamba_dt_max",
        "mamba_dt_min",
        "moe_shared_expert_overlap",
        "mtp_layers_block_type",
        "mtp_hybrid_override_pattern",
    ),
    "moe_shared_expert_intermediate_size": obeyed(
        "width of the expert that every token takes", only=(NEMOTRON_H,)
    ),
    "moe_latent_size": refused("a projection around experts"),
}
