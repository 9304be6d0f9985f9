"""Tiny decoders with a table of positions: GPT-2 and OPT."""

from __future__ import annotations

from kit.family_shapes import FFN, HEADS, HIDDEN, VOCABULARY, Family, Q, biases, norms
from kit.tiny_safetensors import CONTEXT

_WIDE = 4 * HIDDEN
#: transformers' Conv1D stores weights as ``[K, N]``.
_GPT_2 = {
    "attn.c_attn.weight": (HIDDEN, 3 * Q),
    "attn.c_attn.bias": (3 * Q,),
    "attn.c_proj.weight": (Q, HIDDEN),
    "attn.c_proj.bias": (HIDDEN,),
    "mlp.c_fc.weight": (HIDDEN, _WIDE),
    "mlp.c_fc.bias": (_WIDE,),
    "mlp.c_proj.weight": (_WIDE, HIDDEN),
    "mlp.c_proj.bias": (HIDDEN,),
    **biases(norms("ln_1", "ln_2")),
}
_OPT = biases(
    {
        **{f"self_attn.{part}_proj.weight": (Q, HIDDEN) for part in "qkv"},
        "self_attn.out_proj.weight": (HIDDEN, Q),
        "fc1.weight": (FFN, HIDDEN),
        "fc2.weight": (HIDDEN, FFN),
        **norms("self_attn_layer_norm", "final_layer_norm"),
    }
)

WITH_POSITIONS = {
    "gpt 2": Family(
        "GPT2LMHeadModel",
        "gpt2",
        "gpt2",
        _GPT_2,
        {
            "model.wte.weight": (VOCABULARY, HIDDEN),
            "model.wpe.weight": (CONTEXT, HIDDEN),
            **biases(norms("model.ln_f")),
        },
        {
            "n_embd": HIDDEN,
            "n_layer": 4,
            "n_head": HEADS,
            "n_positions": CONTEXT,
            "n_ctx": CONTEXT,
            "n_inner": None,
            "intermediate_size": _WIDE,
            "num_key_value_heads": HEADS,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
        },
        {"attention.layer_norm_epsilon": 1e-5},
        prefix="transformer.",
        layers="h",
        turned=True,
        without=("hidden_act",),
    ),
    "opt": Family(
        "OPTForCausalLM",
        "opt",
        "",
        _OPT,
        {
            "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
            "model.embed_positions.weight": (CONTEXT + 2, HIDDEN),
            **biases(norms("model.final_layer_norm")),
        },
        {
            "ffn_dim": FFN,
            "num_key_value_heads": HEADS,
            "activation_function": "relu",
            "do_layer_norm_before": True,
            "word_embed_proj_dim": HIDDEN,
        },
        prefix="model.decoder.",
        without=("hidden_act",),
    ),
}
