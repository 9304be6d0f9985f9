"""A tiny decoder with random weights: written as GGUF, and computed in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "Ġ Ġ")


def byte_level_tokens() -> list[str]:
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    letters = [chr(byte) for byte in visible] + [chr(256 + n) for n in range(len(hidden))]
    return [*SPECIAL, *letters, *(merge.replace(" ", "") for merge in MERGES)]


@dataclass(frozen=True)
class TinyModel:
    """Weights have Hugging Face's names and layout: linear ``[N, K]``, rotary half-split."""

    architecture: str = "llama"
    hidden: int = 64
    ffn: int = 96
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    rotary_dim: int = 16
    rope_base: float = 10000.0
    rope_factor: float = 1.0
    rope_freqs: np.ndarray | None = None
    epsilon: float = 1e-5
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def vocabulary(self) -> int:
        return len(byte_level_tokens())


_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}


def random_model(seed: int = 0, *, tied: bool = True, biases: bool = False, **shape) -> TinyModel:
    model = TinyModel(**shape)
    random = np.random.default_rng(seed)

    def normal(*size: int, scale: float = 0.15) -> np.ndarray:
        return (random.standard_normal(size) * scale).astype(np.float32)

    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    weights = {"model.embed_tokens.weight": normal(model.vocabulary, model.hidden)}
    for layer in range(model.layers):
        name = f"model.layers.{layer}"
        for part, size in (("q", q), ("k", kv), ("v", kv)):
            weights[f"{name}.self_attn.{part}_proj.weight"] = normal(size, model.hidden)
            if biases:
                weights[f"{name}.self_attn.{part}_proj.bias"] = normal(size)
        weights[f"{name}.self_attn.o_proj.weight"] = normal(model.hidden, q)
        weights[f"{name}.mlp.gate_proj.weight"] = normal(model.ffn, model.hidden)
        weights[f"{name}.mlp.up_proj.weight"] = normal(model.ffn, model.hidden)
        weights[f"{name}.mlp.down_proj.weight"] = normal(model.hidden, model.ffn)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{name}.{norm}.weight"] = 1 + normal(model.hidden)
        if model.architecture == "qwen3":
            for norm in ("q_norm", "k_norm"):
                weights[f"{name}.self_attn.{norm}.weight"] = 1 + normal(model.head_dim)
    weights["model.norm.weight"] = 1 + normal(model.hidden)
    if not tied:
        weights["lm_head.weight"] = normal(model.vocabulary, model.hidden)
    return replace(model, weights=weights)


def interleave(model: TinyModel, rows: np.ndarray) -> np.ndarray:
    """Half-split rotary rows to llama.cpp's neighbouring pairs, as convert_hf_to_gguf does."""
    heads = rows.reshape(-1, model.head_dim, *rows.shape[1:])
    rotary, rest = heads[:, : model.rotary_dim], heads[:, model.rotary_dim :]
    split = rotary.reshape(len(heads), 2, model.rotary_dim // 2, *rows.shape[1:])
    return np.concatenate([split.swapaxes(1, 2).reshape(rotary.shape), rest], 1).reshape(rows.shape)


def deinterleave(model: TinyModel, rows: np.ndarray) -> np.ndarray:
    heads = rows.reshape(-1, model.head_dim, *rows.shape[1:])
    rotary, rest = heads[:, : model.rotary_dim], heads[:, model.rotary_dim :]
    low, high = rotary[:, 0::2], rotary[:, 1::2]
    return np.concatenate([low, high, rest], axis=1).reshape(rows.shape)


def write(path: Path, model: TinyModel, kind: Type = Type.F32, **metadata) -> TinyModel:
    """Writes the model; returns it with the weights that the file really holds."""
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_context_length(512)
    writer.add_block_count(model.layers)
    writer.add_embedding_length(model.hidden)
    writer.add_feed_forward_length(model.ffn)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_key_length(model.head_dim)
    writer.add_value_length(model.head_dim)
    writer.add_rope_dimension_count(model.rotary_dim)
    writer.add_rope_freq_base(model.rope_base)
    writer.add_layer_norm_rms_eps(model.epsilon)
    if model.rope_factor != 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(model.rope_factor)
    add_tokenizer(writer)
    for key, value in metadata.items():
        name = key.replace("__", ".")
        {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)](
            name, value
        )
    held = dict(model.weights)
    for name, source in gguf_names(model).items():
        permuted = model.architecture == "llama" and source.startswith("blk.")
        permuted = permuted and (".attn_q." in source or ".attn_k." in source)
        rows = interleave(model, model.weights[name]) if permuted else model.weights[name]
        tensor_kind = kind if rows.ndim == 2 else Type.F32
        stored = gguf.quants.quantize(rows, tensor_kind)
        writer.add_tensor(source, stored, raw_dtype=tensor_kind)
        rows = gguf.dequantize(stored, tensor_kind).reshape(rows.shape)
        held[name] = deinterleave(model, rows) if permuted else rows
    if model.rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", model.rope_freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(model, weights=held)


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokens = byte_level_tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")


def gguf_names(model: TinyModel) -> dict[str, str]:
    """Hugging Face's name of every weight → its name in the file."""
    names = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    for layer in range(model.layers):
        for source, name in _NAMES.items():
            for part in ("weight", "bias"):
                names[f"model.layers.{layer}.{name}.{part}"] = f"blk.{layer}.{source}.{part}"
    return {name: source for name, source in names.items() if name in model.weights}


def logits(
    model: TinyModel, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    """Computes ``[B, S, V]`` in float64; queries that see no key come out as they may."""
    weights = {name: value.astype(np.float64) for name, value in model.weights.items()}
    visible = np.tril(np.ones((ids.shape[1], ids.shape[1]), bool)) & (mask[:, None, :] != 0)
    x = weights["model.embed_tokens.weight"][ids]
    for layer in range(model.layers):
        name = f"model.layers.{layer}"
        normed = _norm(model, x, weights[f"{name}.input_layernorm.weight"])
        x = x + _attention(model, weights, f"{name}.self_attn", normed, visible, positions)
        normed = _norm(model, x, weights[f"{name}.post_attention_layernorm.weight"])
        gate = normed @ weights[f"{name}.mlp.gate_proj.weight"].T
        up = normed @ weights[f"{name}.mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weights[f"{name}.mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return _norm(model, x, weights["model.norm.weight"]) @ head.T


def _norm(model: TinyModel, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + model.epsilon) * weight


def _rotate(model: TinyModel, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Rotates ``[B, S, D]`` as complex numbers."""
    half = model.rotary_dim // 2
    frequency = model.rope_base ** (-np.arange(half) / half) / model.rope_factor
    if model.rope_freqs is not None:
        frequency = frequency / model.rope_freqs
    turn = np.exp(1j * positions[..., None] * frequency)
    turned = (x[..., :half] + 1j * x[..., half : 2 * half]) * turn
    return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=-1)


def _attention(model, weights, name, x, visible, positions) -> np.ndarray:
    def project(part: str) -> np.ndarray:
        bias = weights.get(f"{name}.{part}_proj.bias", 0)
        y = x @ weights[f"{name}.{part}_proj.weight"].T + bias
        y = y.reshape(*y.shape[:2], -1, model.head_dim)
        if f"{name}.{part}_norm.weight" in weights:
            y = _norm(model, y, weights[f"{name}.{part}_norm.weight"])
        return y

    q, k, v = project("q"), project("k"), project("v")
    out = np.zeros_like(q)
    for head in range(model.heads):
        kv_head = head // (model.heads // model.kv_heads)
        turned = _rotate(model, q[:, :, head], positions)
        scores = turned @ _rotate(model, k[:, :, kv_head], positions).swapaxes(1, 2)
        scores = np.where(visible, scores / np.sqrt(model.head_dim), -1e30)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, :, head] = share / share.sum(-1, keepdims=True) @ v[:, :, kv_head]
    return out.reshape(*x.shape[:2], -1) @ weights[f"{name}.o_proj.weight"].T
