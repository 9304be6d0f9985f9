"""Tiny models with selective state spaces (Mamba-2) as llama.cpp's converter writes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from kit.mambas import (
    EPSILON,
    EXPERT_FFN,
    FFN,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    ROUTED_SCALE,
    TOP,
    TinyMamba,
)
from kit.tiny_gguf import add_tokenizer
from kit.tiny_safetensors import CONTEXT

Array = np.ndarray[Any, Any]
_GGUF = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mamba.in_proj": "ssm_in",
    "mamba.conv1d": "ssm_conv1d",
    "mamba.A_log": "ssm_a",
    "mamba.dt_bias": "ssm_dt.bias",
    "mamba.D": "ssm_d",
    "mamba.norm": "ssm_norm",
    "mamba.out_proj": "ssm_out",
}
_SHARED = {
    "mlp.gate_proj": "ffn_gate_shexp",
    "mlp.up_proj": "ffn_up_shexp",
    "mlp.down_proj": "ffn_down_shexp",
}
_WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def write_gguf(path: Path, model: TinyMamba, kind: Type = Type.F32) -> TinyMamba:
    """Writes a GGUF as llama.cpp's converter does; returns the model that it holds."""
    writer = gguf.GGUFWriter(path, model.architecture)
    layers = len(model.layers)
    writer.add_context_length(CONTEXT)
    writer.add_block_count(layers)
    writer.add_embedding_length(HIDDEN)
    pure = model.architecture == "mamba2"
    writer.add_head_count(0 if pure else HEADS)
    if model.one_block and not pure:
        writer.add_layer_norm_eps(EPSILON)
    else:
        writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_ssm_conv_kernel(model.taps)
    writer.add_ssm_state_size(model.d_state)
    writer.add_ssm_group_count(model.groups)
    writer.add_ssm_inner_size(model.inner)
    writer.add_ssm_time_step_rank(model.heads)
    attending = [KV_HEADS if layer == "*" else 0 for layer in model.layers]
    if pure:
        writer.add_feed_forward_length(0)
    elif model.architecture == "falcon-h1":
        writer.add_head_count_kv(KV_HEADS)
        writer.add_rope_freq_base(model.rope_base)
    else:
        writer.add_head_count_kv(attending)
    if model.architecture == "granitehybrid":
        writer.add_rope_scaling_finetuned(model.rotary)
        writer.add_embedding_scale(model.scale("embedding_multiplier"))
        writer.add_attention_scale(model.scale("attention_multiplier"))
        writer.add_residual_scale(model.scale("residual_multiplier"))
        writer.add_logit_scale(model.scale("logits_scaling"))
        writer.add_feed_forward_length(EXPERT_FFN if model.experts else FFN)
        if model.experts:
            writer.add_expert_count(model.experts)
            writer.add_expert_used_count(TOP)
            writer.add_expert_shared_feed_forward_length(FFN)
    elif not pure:
        writer.add_key_length(HEAD_DIM)
        writer.add_value_length(HEAD_DIM)
        widths = {"-": FFN, "E": EXPERT_FFN}
        blocks = [widths.get(layer, 0) for layer in model.layers]
        writer.add_feed_forward_length(blocks if model.one_block else FFN)
    if model.experts and model.one_block:
        writer.add_expert_count(model.experts)
        writer.add_expert_used_count(TOP)
        writer.add_expert_feed_forward_length(EXPERT_FFN)
        writer.add_expert_shared_feed_forward_length(FFN)
        writer.add_expert_shared_count(1)
        writer.add_expert_weights_norm(True)
        writer.add_expert_weights_scale(ROUTED_SCALE)
        writer.add_expert_group_count(1)
    add_tokenizer(writer)
    held = dict(model.weights)
    for name, value in _folded(model).items():
        order = _pairs(model, name, len(value))
        stored, own = _gguf_tensor(model, name, value[order], kind)
        for target, rows in stored.items():
            packed = gguf.quants.quantize(rows, own)
            writer.add_tensor(target, packed, raw_dtype=own)
            stored[target] = gguf.dequantize(packed, own).reshape(rows.shape)
        if own is not Type.F32:
            rows = np.concatenate(list(stored.values()), axis=-2).reshape(value.shape)
            held[name] = rows[np.argsort(order)]
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if model.architecture == "falcon-h1":
        held = _folded(model) | {n: v for n, v in held.items() if v is not model.weights[n]}
        return replace(model, weights=held, scales={})
    return replace(model, weights=held)


def _pairs(model: TinyMamba, name: str, rows: int) -> Array:
    """The order of rows in a file: rotary pairs of Granite are neighbours there."""
    order = np.arange(rows)
    if model.architecture == "granitehybrid" and name.endswith(("q_proj.weight", "k_proj.weight")):
        order = order.reshape(-1, 2, HEAD_DIM // 2).swapaxes(1, 2).ravel()
    return order


def _gguf_tensor(
    model: TinyMamba, name: str, value: Array, kind: Type
) -> tuple[dict[str, Array], Type]:
    """The tensors that hold a weight, and how they are stored."""
    for own, target in _WHOLE.items():
        if name == f"{own}.weight":
            return {f"{target}.weight": value}, kind if value.ndim == 2 else Type.F32
    _, _, number, part = name.split(".", 3)
    at = f"blk.{number}"
    if part == "router":
        return {f"{at}.ffn_gate_inp.weight": value}, Type.F32
    if part == "correction":
        return {f"{at}.exp_probs_b.bias": value}, Type.F32
    if part == "experts_in" and model.one_block:
        return {f"{at}.ffn_up_exps.weight": value}, kind
    if part == "experts_in":
        gate, up = np.split(value, 2, axis=1)
        return {f"{at}.ffn_gate_exps.weight": gate, f"{at}.ffn_up_exps.weight": up}, kind
    if part == "experts_out":
        return {f"{at}.ffn_down_exps.weight": value}, kind
    module, _, end = part.rpartition(".")
    names = _GGUF | _SHARED if model.experts else _GGUF
    if part in names:
        if part == "mamba.A_log":
            value = -np.exp(value)
        shape = value.shape if part == "mamba.dt_bias" else (-1, 1)
        return {f"{at}.{names[part]}": value.reshape(shape)}, Type.F32
    if module == "mamba.norm":
        value = value.reshape(model.groups, -1)
    if model.architecture == "falcon-h1" and module == "post_attention_layernorm":
        return {f"{at}.ffn_norm": value}, Type.F32  # without an end
    floats = value.ndim == 1 or module in ("mamba.norm", "mamba.conv1d")
    return {f"{at}.{names[module]}.{end}": value}, Type.F32 if floats else kind


def _folded(model: TinyMamba) -> dict[str, Array]:
    """The weights times the factors of Falcon-H1, which a GGUF has not."""
    if model.architecture != "falcon-h1":
        return model.weights
    state = model.groups * model.d_state
    widths = [model.inner, model.inner, state, state, model.heads]
    parts = np.repeat(np.asarray(model.scales["ssm_multipliers"], np.float32), widths)
    gate, down = model.scales["mlp_multipliers"]
    into = model.scale("attention_in_multiplier")
    factors = {
        "q_proj": into,
        "k_proj": into * model.scale("key_multiplier"),
        "v_proj": into,
        "o_proj": model.scale("attention_out_multiplier"),
        "gate_proj": gate,
        "down_proj": down,
        "mamba.out_proj": model.scale("ssm_out_multiplier"),
        "lm_head": model.scale("lm_head_multiplier"),
        "embed_tokens": model.scale("embedding_multiplier"),
    }
    found = dict[str, Array]()
    for name, value in model.weights.items():
        for part, factor in factors.items():
            if name.endswith(f"{part}.weight"):
                value = value * np.float32(factor)
        if name.endswith("mamba.in_proj.weight"):
            value = value * np.float32(model.scale("ssm_in_multiplier")) * parts[:, None]
        found[name] = value
    return found
