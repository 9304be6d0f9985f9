"""Tiny decoders with selective state spaces of Mamba's first version."""

from __future__ import annotations

from dataclasses import replace

from kit.family_shapes import HIDDEN, VOCABULARY, Family, Shapes, norms

_CHANNELS, _STATES, _RANK, _TAPS = 2 * HIDDEN, 16, 4, 4


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

STATES = {
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
