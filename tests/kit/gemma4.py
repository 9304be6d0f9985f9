"""Tiny Gemma 4 with random weights, as files of Hugging Face and of llama.cpp's converter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from kit.gemma_files import INPUT, LAYER, WHOLE, write_text_model
from kit.tiny_gguf import add_tokenizer, byte_level_tokens
from kit.tiny_safetensors import CONTEXT

HIDDEN, HEADS, EPSILON = 64, 4, 1e-6
#: Key/value heads and length of a head, with a window and without.
LOCAL, WIDE = (2, 16), (1, 32)
_PART = 0.25
_VOCABULARY = len(byte_level_tokens())
_LAYER = {
    **LAYER,
    "layer_scalar": "layer_output_scale",
    **INPUT,
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "router.proj": "ffn_gate_inp",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "experts.gate_up_proj": "ffn_gate_up_exps",
    "experts.down_proj": "ffn_down_exps",
}
#: Tensors whose names end with their module.
_BARE = ("layer_scalar", "router.scale", "router.per_expert_scale", "experts.")
_OF_KEYS = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm")

#: Like E2B, 31B and 26B-A4B.
MODELS: dict[str, dict[str, Any]] = {
    "inputs of layers": {"layers": 6, "shared": 2, "width": 32, "double": True, "cap": 30.0},
    "keys that are values": {"one_projection": True, "cap": 30.0},
    "experts": {"one_projection": True, "experts": 6, "top": 2},
}


@dataclass(frozen=True)
class TinyGemma4:
    """Weights have the names and the layout of transformers, without what begins them.

    Attributes:
        layers: How many.
        shared: The last of them, which read keys and values of others.
        every: Of so many layers the last sees all keys.
        window: Keys that the others see.
        width: Of the input of a layer; 0 for none.
        ffn: Width of the feed-forward blocks.
        double: Whether it is twice that in layers that read keys and values of others.
        one_projection: Whether layers that see all keys make values of the product of keys.
        experts: Experts beside each feed-forward block; 0 for none.
        top: Of which a token takes so many.
        cap: Soft cap of logits; 0 for none.
        weights: By name.
    """

    layers: int = 4
    shared: int = 0
    every: int = 2
    window: int = 8
    width: int = 0
    ffn: int = 96
    double: bool = False
    one_projection: bool = False
    experts: int = 0
    top: int = 2
    cap: float = 0.0
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def local(self) -> list[bool]:
        """Which layers have a window."""
        return [layer % self.every != 0 for layer in range(1, self.layers + 1)]

    @property
    def ffns(self) -> list[int]:
        """The width of each feed-forward block."""
        first = self.layers - self.shared
        return [self.ffn * (1 + (self.double and n >= first)) for n in range(self.layers)]

    @property
    def global_heads(self) -> int:
        """Key/value heads of layers that see all keys."""
        return WIDE[0] if self.one_projection else LOCAL[0]


def random_gemma4(seed: int = 0, **shape: Any) -> TinyGemma4:
    """A model with random weights.

    Args:
        seed: Of the weights.
        shape: Fields of `TinyGemma4`.
    """
    model = TinyGemma4(**shape)
    random = np.random.default_rng(seed)
    weights = {}
    for name, size in _shapes(model).items():
        value = random.standard_normal(size) * 0.15
        about_one = len(size) == 1 and (size != (1,) or name.endswith("layer_scalar"))
        weights[name] = (value + about_one).astype(np.float32)
    return replace(model, weights=weights)


def _shapes(model: TinyGemma4) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (_VOCABULARY, HIDDEN)}
    if model.width:
        parts = model.layers * model.width
        shapes["embed_tokens_per_layer.weight"] = (_VOCABULARY, parts)
        shapes["per_layer_model_projection.weight"] = (parts, HIDDEN)
        shapes["per_layer_projection_norm.weight"] = (model.width,)
    for layer in range(model.layers):
        for name, size in _of_layer(model, layer).items():
            end = "" if name.startswith(_BARE) else ".weight"
            shapes[f"layers.{layer}.{name}{end}"] = size
    return shapes | {"norm.weight": (HIDDEN,)}


def _of_layer(model: TinyGemma4, layer: int) -> dict[str, tuple[int, ...]]:
    local, ffn = model.local[layer], model.ffns[layer]
    count, size = LOCAL if local else (model.global_heads, WIDE[1])
    q, kv, each = HEADS * size, count * size, 32
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (q, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, q),
        "self_attn.q_norm": (size,),
        "self_attn.k_norm": (size,),
        "mlp.gate_proj": (ffn, HIDDEN),
        "mlp.up_proj": (ffn, HIDDEN),
        "mlp.down_proj": (HIDDEN, ffn),
        "layer_scalar": (1,),
        "per_layer_input_gate": (model.width, HIDDEN),
        "per_layer_projection": (HIDDEN, model.width),
        "router.proj": (model.experts, HIDDEN),
        "router.per_expert_scale": (model.experts,),
        "experts.gate_up_proj": (model.experts, 2 * each, HIDDEN),
        "experts.down_proj": (model.experts, HIDDEN, each),
    }
    lacking = list(_OF_KEYS) if layer >= model.layers - model.shared else []
    lacking += ["self_attn.v_proj"] if model.one_projection and not local else []
    lacking += [] if model.width else [name for name in _LAYER if "per_layer" in name]
    if not model.experts:
        lacking += [name for name in _LAYER if name.startswith(("router", "experts"))]
        lacking += [name for name in _LAYER if name.endswith(("_1", "_2"))]
    lacking = [name for name in lacking if name != "router.per_expert_scale" or not model.experts]
    return {name: shapes.get(name, (HIDDEN,)) for name in _LAYER if name not in lacking}


def config(model: TinyGemma4) -> dict[str, Any]:
    """The ``config.json`` of the text model, as published."""
    kinds = ["sliding_attention" if local else "full_attention" for local in model.local]
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "model_type": "gemma4_text",
        "vocab_size": _VOCABULARY,
        "vocab_size_per_layer_input": _VOCABULARY,
        "hidden_size": HIDDEN,
        "hidden_size_per_layer_input": model.width,
        "intermediate_size": model.ffn,
        "num_hidden_layers": model.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": LOCAL[0],
        "num_global_key_value_heads": WIDE[0] if model.one_projection else None,
        "num_kv_shared_layers": model.shared,
        "head_dim": LOCAL[1],
        "global_head_dim": WIDE[1],
        "attention_k_eq_v": model.one_projection,
        "use_double_wide_mlp": model.double,
        "enable_moe_block": model.experts > 0,
        "num_experts": model.experts or None,
        "top_k_experts": model.top if model.experts else None,
        "moe_intermediate_size": 32 if model.experts else None,
        "rms_norm_eps": EPSILON,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": kinds,
        "sliding_window": model.window,
        "max_position_embeddings": CONTEXT,
        "rope_parameters": {
            "full_attention": {
                "rope_theta": 1e6,
                "rope_type": "proportional",
                "partial_rotary_factor": _PART,
            },
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
        "use_bidirectional_attention": None,
        "final_logit_softcapping": model.cap or None,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def write_folder(
    folder: Path, model: TinyGemma4, kind: Type = Type.F32, towers: bool = False, **changes: Any
) -> Path:
    """Writes a folder of Hugging Face.

    Args:
        folder: Made where it is not there.
        model: The model.
        kind: Of matrices.
        towers: Whether the text model lies beside what reads pictures and sound.
        changes: Other values in the text model's part of ``config.json``; None removes one.
    """
    outer = {"architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4"}
    fields = {**config(model), **changes}
    return write_text_model(folder, model.weights, fields, kind, outer if towers else None)


def write_gguf(path: Path, model: TinyGemma4, kind: Type = Type.F32) -> TinyGemma4:
    """Writes a GGUF as llama.cpp's converter does; returns the model that it holds."""
    writer = gguf.GGUFWriter(path, "gemma4")
    writer.add_context_length(CONTEXT)
    writer.add_block_count(model.layers)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(model.ffns if model.double else model.ffn)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(
        [LOCAL[0] if local else WIDE[0] for local in model.local]
        if model.one_projection
        else LOCAL[0]
    )
    writer.add_key_length(WIDE[1])
    writer.add_value_length(WIDE[1])
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        writer.add_uint32(f"gemma4.{key}_swa", LOCAL[1])  # gguf 0.18 has no function for these
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(1e6)
    writer.add_rope_freq_base_swa(1e4)
    writer.add_rope_dimension_count(WIDE[1])
    writer.add_sliding_window(model.window)
    writer.add_sliding_window_pattern(model.local)
    writer.add_shared_kv_layers(model.shared)
    writer.add_embedding_length_per_layer_input(model.width)
    if model.cap:
        writer.add_final_logit_softcapping(model.cap)
    if model.experts:
        writer.add_expert_count(model.experts)
        writer.add_expert_used_count(model.top)
        writer.add_expert_feed_forward_length(32)
    add_tokenizer(writer)
    turning = int(_PART * WIDE[1] / 2)
    factors = np.where(np.arange(WIDE[1] // 2) < turning, 1, 1e30).astype(np.float32)
    writer.add_tensor("rope_freqs.weight", factors)
    held = dict(model.weights)
    for name, value in model.weights.items():
        own = Type.F32 if value.ndim == 1 or "router" in name else kind
        packed = gguf.quants.quantize(value, own)
        held[name] = gguf.dequantize(packed, own).reshape(value.shape)
        writer.add_tensor(_gguf_name(name), packed, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(model, weights=held)


def _gguf_name(name: str) -> str:
    module = name.removesuffix(".weight")
    if not module.startswith("layers."):
        return f"{WHOLE[module]}.weight"
    _, layer, part = module.split(".", 2)
    stored = _LAYER[part]
    return f"blk.{layer}.{stored}{'' if stored.endswith('.scale') else '.weight'}"
