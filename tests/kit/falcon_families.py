"""Tiny Falcons: one head of keys, groups of heads, one norm and two."""

from __future__ import annotations

from typing import Any

from kit.family_shapes import (
    HEAD_DIM,
    HIDDEN,
    KV,
    KV_HEADS,
    VOCABULARY,
    Family,
    Q,
    Shapes,
    biases,
    norms,
)

#: As llama.cpp takes it.
_WIDE = 4 * HIDDEN
_ENDS = {"model.word_embeddings.weight": (VOCABULARY, HIDDEN), **biases(norms("model.ln_f"))}
_FIELDS: dict[str, Any] = {"activation": "gelu", "layer_norm_epsilon": 1e-5, "parallel_attn": True}
_FIELDS |= {"intermediate_size": _WIDE, "bias": False, "alibi": False}
_GROUPED = {"new_decoder_architecture": True, "num_kv_heads": KV_HEADS}


def _layer(keys: int, *names: str) -> Shapes:
    """A layer whose keys and values are so wide, with these norms."""
    return {
        "self_attention.query_key_value.weight": (Q + 2 * keys, HIDDEN),
        "self_attention.dense.weight": (HIDDEN, Q),
        "mlp.dense_h_to_4h.weight": (_WIDE, HIDDEN),
        "mlp.dense_4h_to_h.weight": (HIDDEN, _WIDE),
        **biases(norms(*names)),
    }


def _falcon(layer: Shapes, kv_heads: int, fields: dict[str, Any]) -> Family:
    return Family(
        "FalconForCausalLM",
        "falcon",
        "falcon",
        layer,
        _ENDS,
        {**_FIELDS, **fields, "num_key_value_heads": kv_heads},
        {"attention.layer_norm_epsilon": 1e-5},
        prefix="transformer.",
        layers="h",
        without=("head_dim",),
    )


FALCONS = {
    "falcon 7b": _falcon(_layer(HEAD_DIM, "input_layernorm"), 1, {"multi_query": True}),
    "falcon 11b": _falcon(
        _layer(KV, "input_layernorm"), KV_HEADS, {**_GROUPED, "num_ln_in_parallel_attn": 1}
    ),
    "falcon 40b": _falcon(_layer(KV, "ln_attn", "ln_mlp"), KV_HEADS, _GROUPED),
}
