"""A tiny Apertus, whose layers have trained the numbers of their activation."""

from __future__ import annotations

from kit.family_shapes import DOWN, ENDS, FFN, HEAD_DIM, HIDDEN, OUT, QKV, Family, Shapes, norms

_NUMBERS: Shapes = {"alpha_p": (1,), "alpha_n": (1,), "beta": (), "eps": ()}
APERTUS = {
    "apertus": Family(
        "ApertusForCausalLM",
        "apertus",
        "apertus",
        {
            **QKV,
            **OUT,
            **norms("self_attn.q_norm", "self_attn.k_norm", width=HEAD_DIM),
            "mlp.up_proj.weight": (FFN, HIDDEN),
            **DOWN,
            **{f"mlp.act_fn.{name}": shape for name, shape in _NUMBERS.items()},
            **norms("attention_layernorm", "feedforward_layernorm"),
        },
        ENDS,
        {
            "hidden_act": "xielu",
            "rope_parameters": {"rope_type": "default", "rope_theta": 12e6},
        },
        {
            "rope.freq_base": 12e6,
            "rope.dimension_count": HEAD_DIM,
            "attention.key_length": None,
            "attention.value_length": None,
        },
        without=("head_dim",),
    ),
}
