"""Tiny Gemma 3n with random weights, as files of Hugging Face and of llama.cpp's converter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from kit.gemma_files import INPUT, LAYER, WHOLE, write_text_model
from kit.tiny_gguf import add_tokenizer, byte_level_tokens
from kit.tiny_safetensors import CONTEXT

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EPSILON, STREAMS = 64, 4, 2, 16, 1e-6, 4
_VOCABULARY = len(byte_level_tokens())
_STACKED = {"altup_projections": "altup_proj", "altup_unembed_projections": "altup_unembd_proj"}
_LAYER = {
    **LAYER,
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
    **INPUT,
    "altup.router_norm": "altup_router_norm",
    "altup.modality_router": "altup_router",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.correct_output_scale": "altup_correct_scale",
}


@dataclass(frozen=True)
class TinyStreams:
    """Weights have the names and the layout of transformers, without what begins them.

    Attributes:
        layers: How many.
        shared: The last of them, which read keys and values of others.
        every: Of so many layers the last sees all keys.
        window: Keys that the others see.
        width: Of the input of a layer.
        rank: Of the path beside attention.
        ffn: Width of the feed-forward blocks.
        sparsity: Of the gates of the first layers.
        rows: Of the embedding of layers.
        weights: By name.
    """

    layers: int = 6
    shared: int = 2
    every: int = 3
    window: int = 8
    width: int = 32
    rank: int = 32
    ffn: int = 96
    sparsity: tuple[float, ...] = (0.95, 0.5)
    rows: int = _VOCABULARY
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def local(self) -> list[bool]:
        """Which layers have a window."""
        return [layer % self.every != 0 for layer in range(1, self.layers + 1)]

    @property
    def pattern(self) -> list[float]:
        """The sparsity of each layer."""
        return [*self.sparsity, *[0.0] * (self.layers - len(self.sparsity))]


def random_streams(seed: int = 0, loud: float = 1.0, **shape: Any) -> TinyStreams:
    """A model with random weights.

    Args:
        seed: Of the weights.
        loud: Size of what a layer adds; deep models of loud layers make much of a rounding.
        shape: Fields of `TinyStreams`.
    """
    model = TinyStreams(**shape)
    random = np.random.default_rng(seed)

    def normal(*size: int) -> np.ndarray:
        return (random.standard_normal(size) * 0.15).astype(np.float32)

    q, kv, parts = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, model.layers * model.width
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (_VOCABULARY, HIDDEN),
        "embed_tokens_per_layer.weight": (model.rows, parts),
        "per_layer_model_projection.weight": (parts, HIDDEN),
        "per_layer_projection_norm.weight": (model.width,),
    }
    for stack in _STACKED:
        shapes |= {f"{stack}.{n}.weight": (HIDDEN, HIDDEN) for n in range(STREAMS - 1)}
    of_layer: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj": (q, HIDDEN),
        "self_attn.k_proj": (kv, HIDDEN),
        "self_attn.v_proj": (kv, HIDDEN),
        "self_attn.o_proj": (HIDDEN, q),
        "self_attn.q_norm": (HEAD_DIM,),
        "self_attn.k_norm": (HEAD_DIM,),
        "mlp.gate_proj": (model.ffn, HIDDEN),
        "mlp.up_proj": (model.ffn, HIDDEN),
        "mlp.down_proj": (HIDDEN, model.ffn),
        "laurel.linear_left": (model.rank, HIDDEN),
        "laurel.linear_right": (HIDDEN, model.rank),
        "per_layer_input_gate": (model.width, HIDDEN),
        "per_layer_projection": (HIDDEN, model.width),
        "altup.modality_router": (STREAMS, HIDDEN),
        "altup.prediction_coefs": (STREAMS**2, STREAMS),
        "altup.correction_coefs": (STREAMS, STREAMS),
    }
    for layer in range(model.layers):
        for name in _LAYER:
            end = "" if name.endswith("_scale") else ".weight"
            shapes[f"layers.{layer}.{name}{end}"] = of_layer.get(name, (HIDDEN,))
    shapes["norm.weight"] = (HIDDEN,)
    weights = {name: normal(*size) + np.float32(len(size) == 1) for name, size in shapes.items()}
    for name in weights:
        if ".post_" in name:
            weights[name] *= np.float32(loud)
    return replace(model, weights=weights)


def config(model: TinyStreams) -> dict[str, Any]:
    """What transformers 5 writes as ``config.json`` of the text model."""
    kinds = ["sliding_attention" if local else "full_attention" for local in model.local]
    return {
        "architectures": ["Gemma3nForCausalLM"],
        "model_type": "gemma3n_text",
        "vocab_size": _VOCABULARY,
        "vocab_size_per_layer_input": model.rows,
        "hidden_size": HIDDEN,
        "hidden_size_per_layer_input": model.width,
        "intermediate_size": [model.ffn] * model.layers,
        "num_hidden_layers": model.layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "num_kv_shared_layers": model.shared,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": EPSILON,
        "hidden_activation": "gelu_pytorch_tanh",
        "activation_sparsity_pattern": model.pattern,
        "layer_types": kinds,
        "sliding_window": model.window,
        "max_position_embeddings": CONTEXT,
        "rope_parameters": {
            "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
            "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        },
        "altup_active_idx": 0,
        "altup_coef_clip": 120.0,
        "altup_correct_scale": True,
        "altup_num_inputs": STREAMS,
        "laurel_rank": model.rank,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def write_folder(
    folder: Path, model: TinyStreams, kind: Type = Type.F32, towers: bool = False, **changes: Any
) -> Path:
    """Writes a folder of Hugging Face.

    Args:
        folder: Made where it is not there.
        model: The model.
        kind: Of matrices.
        towers: Whether the text model lies beside what reads pictures and sound.
        changes: Other values in the text model's part of ``config.json``.
    """
    outer = {"architectures": ["Gemma3nForConditionalGeneration"], "model_type": "gemma3n"}
    fields = {**config(model), **changes}
    return write_text_model(folder, model.weights, fields, kind, outer if towers else None)


def write_gguf(
    path: Path, model: TinyStreams, kind: Type = Type.F32, keys: bool = True
) -> TinyStreams:
    """Writes a GGUF as llama.cpp's converter does; returns the model that it holds.

    Args:
        path: The file.
        model: The model.
        kind: Of matrices, but for those of streams, which llama.cpp does not quantise.
        keys: Whether the keys are written that llama.cpp does not read.
    """
    writer = gguf.GGUFWriter(path, "gemma3n")
    writer.add_context_length(CONTEXT)
    writer.add_block_count(model.layers)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length([model.ffn] * model.layers)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(1e6)
    writer.add_sliding_window(model.window)
    writer.add_sliding_window_pattern(model.local)
    writer.add_altup_active_idx(0)
    writer.add_altup_num_inputs(STREAMS)
    writer.add_embedding_length_per_layer_input(model.width)
    if keys:
        writer.add_shared_kv_layers(model.shared)
        # llama.cpp's deviations are those of a sample: it divides by the width less 1.
        of_sample = (model.ffn / (model.ffn - 1)) ** 0.5
        above = [NormalDist().inv_cdf(share) if share else -np.inf for share in model.pattern]
        writer.add_activation_sparsity_scale([value * of_sample for value in above])
    add_tokenizer(writer)
    held, stacks = dict(model.weights), dict[str, list[np.ndarray]]()
    for name, value in model.weights.items():
        target = _gguf_name(name)
        plain = value.ndim == 1 or "altup" in target or "laurel" in target
        own = Type.F32 if plain else kind
        packed = gguf.quants.quantize(value, own)
        held[name] = gguf.dequantize(packed, own).reshape(value.shape)
        if name.startswith(tuple(_STACKED)):
            stacks.setdefault(target, []).append(packed)
        else:
            writer.add_tensor(target, packed, raw_dtype=own)
    for target, parts in stacks.items():
        writer.add_tensor(target, np.stack(parts), raw_dtype=Type.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(model, weights=held)


def _gguf_name(name: str) -> str:
    module = name.removesuffix(".weight")
    if module.startswith("layers."):
        _, layer, part = module.split(".", 2)
        return f"blk.{layer}.{_LAYER[part]}.weight"
    return f"{(WHOLE | _STACKED)[module.rstrip('.012')]}.weight"
