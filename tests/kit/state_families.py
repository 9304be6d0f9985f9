"""Tiny decoders with selective state spaces of Mamba's first version."""

from __future__ import annotations

from dataclasses import replace

from kit.family_shapes import (
    EXPERTS,
    FFN,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    OUT,
    QKV,
    VOCABULARY,
    Family,
    Shapes,
    norms,
)

_CHANNELS, _STATES, _RANK, _TAPS = 2 * HIDDEN, 16, 4, 4
_MAMBA_HEADS = 8


def mixer(name: str) -> Shapes:
    """A state space of a layer."""
    return {
        f"{name}.in_proj.weight": (2 * _CHANNELS, HIDDEN),
        f"{name}.conv1d.weight": (_CHANNELS, 1, _TAPS),
        f"{name}.conv1d.bias": (_CHANNELS,),
        f"{name}.x_proj.weight": (_RANK + 2 * _STATES, _CHANNELS),
        f"{name}.dt_proj.weight": (_CHANNELS, _RANK),
        f"{name}.dt_proj.bias": (_CHANNELS,),
        f"{name}.A_log": (_CHANNELS, _STATES),
        f"{name}.D": (_CHANNELS,),
        f"{name}.out_proj.weight": (HIDDEN, _CHANNELS),
    }


_MAMBA = Family(
    "MambaForCausalLM",
    "mamba",
    "mamba",
    mixer("mixer") | norms("norm"),
    {
        "model.embeddings.weight": (VOCABULARY, HIDDEN),
        "model.norm_f.weight": (HIDDEN,),
    },
    {
        "layer_norm_epsilon": 1e-5,
        "state_size": _STATES,
        "conv_kernel": _TAPS,
        "expand": 2,
        "time_step_rank": _RANK,
        "use_bias": False,
        "use_conv_bias": True,
        "intermediate_size": _CHANNELS,
    },
    {
        "context_length": 1 << 20,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        **dict.fromkeys(("attention.head_count_kv", "rope.freq_base")),
        **dict.fromkeys(("attention.key_length", "attention.value_length")),
        "ssm.conv_kernel": _TAPS,
        "ssm.inner_size": _CHANNELS,
        "ssm.state_size": _STATES,
        "ssm.time_step_rank": _RANK,
        "ssm.dt_b_c_rms": False,
    },
    prefix="backbone.",
)

_EACH = {"gate_proj": (FFN, HIDDEN), "up_proj": (FFN, HIDDEN), "down_proj": (HIDDEN, FFN)}
_BLOCK = {f"feed_forward.{part}.weight": shape for part, shape in _EACH.items()}
_MIXTURE: Shapes = {
    "feed_forward.router.weight": (EXPERTS, HIDDEN),
    **{
        f"feed_forward.experts.{number}.{part}.weight": shape
        for number in range(EXPERTS)
        for part, shape in _EACH.items()
    },
}
_JAMBA_STATES: Shapes = {
    **mixer("mamba"),
    **norms("mamba.dt_layernorm", width=_RANK),
    **norms("mamba.b_layernorm", "mamba.c_layernorm", width=_STATES),
}
_JAMBA_NORMS = norms("input_layernorm", "pre_ff_layernorm")
_JAMBA = Family(
    "JambaForCausalLM",
    "jamba",
    "jamba",
    (
        {**_JAMBA_STATES, **_BLOCK, **_JAMBA_NORMS},
        {**_JAMBA_STATES, **_MIXTURE, **_JAMBA_NORMS},
        {**QKV, **OUT, **_BLOCK, **_JAMBA_NORMS},
        {**_JAMBA_STATES, **_MIXTURE, **_JAMBA_NORMS},
    ),
    {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.final_layernorm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    },
    {
        "mamba_d_state": _STATES,
        "mamba_d_conv": _TAPS,
        "mamba_expand": 2,
        "mamba_dt_rank": _RANK,
        "attn_layer_period": 8,
        "attn_layer_offset": 2,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "rms_norm_eps": 1e-6,
    },
    {
        "attention.head_count_kv": [0, 0, KV_HEADS, 0],
        **dict.fromkeys(("attention.key_length", "attention.value_length", "rope.freq_base")),
        "ssm.conv_kernel": _TAPS,
        "ssm.inner_size": _CHANNELS,
        "ssm.state_size": _STATES,
        "ssm.time_step_rank": _RANK,
        "expert_count": EXPERTS,
        "expert_used_count": 2,
    },
)

_BAMBA_STATES: Shapes = {
    "mamba.in_proj.weight": (2 * _CHANNELS + 2 * _STATES + _MAMBA_HEADS, HIDDEN),
    "mamba.conv1d.weight": (_CHANNELS + 2 * _STATES, 1, _TAPS),
    "mamba.conv1d.bias": (_CHANNELS + 2 * _STATES,),
    "mamba.A_log": (_MAMBA_HEADS,),
    "mamba.D": (_MAMBA_HEADS,),
    "mamba.dt_bias": (_MAMBA_HEADS,),
    "mamba.norm.weight": (_CHANNELS,),
    "mamba.out_proj.weight": (HIDDEN, _CHANNELS),
}
_BAMBA = Family(
    "BambaForCausalLM",
    "bamba",
    "",
    tuple(
        {**(_BAMBA_STATES if number != 2 else {**QKV, **OUT}), **_BLOCK, **_JAMBA_NORMS}
        for number in range(LAYERS)
    ),
    _JAMBA.ends,
    {
        "mamba_n_heads": _MAMBA_HEADS,
        "mamba_d_head": 16,
        "mamba_n_groups": 1,
        "mamba_d_state": _STATES,
        "mamba_d_conv": _TAPS,
        "mamba_expand": 2,
        "attn_layer_indices": [2],
        "attn_rotary_emb": 8,
    },
)

STATES = {
    "bamba": _BAMBA,
    "jamba": _JAMBA,
    "jamba without experts": replace(
        _JAMBA,
        layer=tuple(
            {**(_JAMBA_STATES if number != 2 else {**QKV, **OUT}), **_BLOCK, **_JAMBA_NORMS}
            for number in range(LAYERS)
        ),
        config=_JAMBA.config | {"num_experts": 1, "num_experts_per_tok": 1},
        keys=_JAMBA.keys | {"expert_count": 1, "expert_used_count": 1},
    ),
    "mamba": _MAMBA,
    "falcon mamba": replace(
        _MAMBA,
        model_class="FalconMambaForCausalLM",
        model_type="falcon_mamba",
        ends=_MAMBA.ends | {"lm_head.weight": (VOCABULARY, HIDDEN)},
        config=_MAMBA.config | {"mixer_rms_eps": 1e-5},
        keys=_MAMBA.keys | {"ssm.dt_b_c_rms": True},
    ),
}
