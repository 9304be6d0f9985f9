"""A tiny decoder with random weights: written as GGUF, and computed in NumPy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from kit.convolutions import add_convolution_keys, convolution, convolution_weights, convolves
from kit.delta_nets import (
    add_delta_keys,
    delta_net,
    delta_weights,
    gated,
    gguf_order,
    gguf_rows,
    has_delta_net,
)
from kit.feed_forward import expert_block, feed_forward
from kit.gguf_blocks import block_values, random_blocks, random_signs
from kit.gguf_names import gguf_names
from kit.latents import (
    add_latent_keys,
    joined,
    latent_attention,
    latent_of,
    latent_weights,
    paired,
    split,
)
from kit.mixtures import (
    CORRECTED,
    SHARED_GATES,
    add_expert_keys,
    expert_widths,
    gguf_experts,
    gpt_oss_weights,
)
from kit.tiny_attention import attention, rms_norm, soft_cap, turns
from tamiz_ops.formats import gguf_format

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
    window: int = 0
    soft_caps: tuple[float, float] = (0.0, 0.0)  # of scores and of logits; 0 for none
    experts: int = 0  # of each layer; a token takes `top`
    top: int = 2
    groups: tuple[int, int] = (1, 1)  # of experts, and those that a token takes experts of
    expert_ffn: int = 32
    shared_ffn: int = 64  # of qwen2moe, ernie4_5-moe, glm4moe and deepseek2
    sigmoids: bool = False  # scores of experts of deepseek2, as from DeepSeek-V3 on
    query_rank: int = 32  # of the latent of queries, where there are latents; 0: none
    split: bool = False  # whether what makes keys and values of latents is two tensors in GGUF
    dense_layers: int = 0  # the first, without experts
    taps: int = 3  # of convolutions over time
    yarn: tuple[float, int] | None = None  # factor, original context
    yarn_scale: float = 0.0  # of yarn's logarithm; not 0: scores are stretched, not what rotates
    long_factors: np.ndarray | None = None  # of rotary frequencies, short and long contexts alike
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def vocabulary(self) -> int:
        return len(byte_level_tokens())

    @property
    def factors(self) -> tuple[float, float, float, float]:
        """On embedding, scores (0: of the head's size) and residuals; and a divisor of logits."""
        if self.architecture == "minicpm3":
            return 12.0, 0.0, 1.4 / self.layers**0.5, self.hidden / 256
        granite = self.architecture.startswith("granite")
        return (3.0, 0.3, 0.4, 2.0) if granite else (1.0, 0.0, 1.0, 1.0)

    @property
    def stretch(self) -> float:
        """Factor on scores."""
        if not self.yarn or not self.yarn_scale:
            return 1.0
        return float(0.1 * self.yarn_scale * np.log(self.yarn[0]) + 1) ** 2

    @property
    def norms_around(self) -> bool:
        return self.architecture in ("gemma2", "gemma3")

    @property
    def neighbours(self) -> bool:
        """Whether rotary pairs are neighbours in the file."""
        names = ("llama", "smollm3", "arcee", "granite", "granitemoe")
        return self.architecture in names or self.architecture.startswith("ernie")

    def window_of(self, layer: int) -> int:
        every = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}.get(self.architecture, 0)
        sees_all = every and layer % every == every - 1
        return 0 if sees_all else self.window


_NORMED_HEADS = ("qwen3", "qwen3moe", "gemma3", "glm4moe", "lfm2")


def attends(model: TinyModel, layer: int) -> bool:
    """Whether a layer attends."""
    return not (convolves(model, layer) or has_delta_net(model, layer))


def random_model(seed: int = 0, *, tied: bool = True, biases: bool = False, **shape) -> TinyModel:
    model = TinyModel(**shape)
    random = np.random.default_rng(seed)

    def normal(*size: int, scale: float = 0.15) -> np.ndarray:
        return (random.standard_normal(size) * scale).astype(np.float32)

    q, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    weights = {"model.embed_tokens.weight": normal(model.vocabulary, model.hidden)}
    for layer in range(model.layers):
        name = f"model.layers.{layer}"
        convolved = not attends(model, layer)
        if convolves(model, layer):
            weights |= convolution_weights(model, name, normal)
        elif convolved:
            weights |= delta_weights(name, model, normal)
        latent = latent_of(model) is not None
        if latent:
            weights |= latent_weights(model, name, normal)
        own = not convolved and not latent
        for part, size in (("q", q), ("k", kv), ("v", kv)) if own else ():
            rows = 2 * size if part == "q" and gated(model) else size
            weights[f"{name}.self_attn.{part}_proj.weight"] = normal(rows, model.hidden)
            if biases:
                weights[f"{name}.self_attn.{part}_proj.bias"] = normal(size)
        if own:
            weights[f"{name}.self_attn.o_proj.weight"] = normal(model.hidden, q)
        mixed = model.experts > 0 and layer >= model.dense_layers
        if mixed:
            weights[f"{name}.mlp.gate.weight"] = normal(model.experts, model.hidden, scale=0.5)
        if model.architecture in SHARED_GATES:
            weights[f"{name}.mlp.shared_expert_gate.weight"] = normal(1, model.hidden)
        if mixed and (model.architecture in CORRECTED or model.sigmoids):
            weights[f"{name}.mlp.gate_correction.bias"] = normal(model.experts, scale=0.3)
        for block, width in (expert_widths(model) if mixed else {"mlp": model.ffn}).items():
            if model.architecture not in ("arcee", "plm"):
                weights[f"{name}.{block}.gate_proj.weight"] = normal(width, model.hidden)
            weights[f"{name}.{block}.up_proj.weight"] = normal(width, model.hidden)
            weights[f"{name}.{block}.down_proj.weight"] = normal(model.hidden, width)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if model.norms_around:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for norm in norms:
            weights[f"{name}.{norm}.weight"] = 1 + normal(model.hidden)
        for norm, width in () if convolved else (("q_norm", q), ("k_norm", kv)):
            if gated(model) or model.architecture in _NORMED_HEADS:
                weights[f"{name}.self_attn.{norm}.weight"] = 1 + normal(model.head_dim)
            elif model.architecture == "olmoe":
                weights[f"{name}.self_attn.{norm}.weight"] = 1 + normal(width)
        if model.architecture.startswith("bitnet"):
            weights[f"{name}.self_attn.attn_sub_norm.weight"] = 1 + normal(q)
            weights[f"{name}.mlp.ffn_sub_norm.weight"] = 1 + normal(model.ffn)
        weights |= gpt_oss_weights(model, name, normal)
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


def write(
    path: Path, model: TinyModel, kind: Type = Type.F32, experts: Type | None = None, **metadata
) -> TinyModel:
    """Writes the model; returns it with the weights that the file really holds.

    Matrices are of a `kind`, those of experts of another one where it is given.
    """
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_context_length(512)
    writer.add_block_count(model.layers)
    writer.add_embedding_length(model.hidden)
    writer.add_head_count(model.heads)
    add_latent_keys(writer, model)
    writer.add_rope_dimension_count(model.rotary_dim)
    writer.add_rope_freq_base(model.rope_base)
    writer.add_layer_norm_rms_eps(model.epsilon)
    if model.rope_factor != 1:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(model.rope_factor)
    if model.window:
        writer.add_sliding_window(model.window)
    if model.soft_caps != (0.0, 0.0):
        writer.add_attn_logit_softcapping(model.soft_caps[0])
        writer.add_final_logit_softcapping(model.soft_caps[1])
    if model.yarn:
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(model.yarn[0])
        writer.add_rope_scaling_orig_ctx_len(model.yarn[1])
    if model.long_factors is not None:
        writer.add_rope_scaling_orig_ctx_len(128)
        for length in ("short", "long"):
            writer.add_tensor(f"rope_factors_{length}.weight", model.long_factors)
    add_convolution_keys(writer, model)
    add_delta_keys(writer, model)
    add_expert_keys(writer, model)
    if model.architecture.startswith("granite"):
        writer.add_embedding_scale(model.factors[0])
        writer.add_attention_scale(model.factors[1])
        writer.add_residual_scale(model.factors[2])
        writer.add_logit_scale(model.factors[3])
    add_tokenizer(writer)
    if model.architecture == "bitnet":
        metadata = {"bitnet__hidden_activation": "relu2", **metadata}
    for key, value in metadata.items():
        name = key.replace("__", ".")
        writer.kv_data[-1].pop(name, None)  # gguf refuses a second value
        writers: dict[type, Any] = {
            str: writer.add_string,
            int: writer.add_uint32,
            float: writer.add_float32,
        }
        writers[type(value)](name, value)
    held = dict(model.weights)
    for name, source in gguf_names(model).items():
        permuted = model.neighbours and source.startswith("blk.")
        permuted = permuted and (".attn_q." in source or ".attn_k." in source)
        if model.architecture == "phi3" and name.endswith(_FUSED_AWAY):
            continue
        rows = interleave(model, model.weights[name]) if permuted else model.weights[name]
        rows = paired(model, name, rows)
        if model.split and source.endswith("attn_kv_b.weight"):
            held[name] = _write_split(writer, model, source, rows, kind)
            continue
        if model.architecture == "phi3":
            source, rows = _fused(model, name, source, rows)
        if (together := gguf_rows(model, name)) is not None:
            writer.add_tensor(*together)
        if model.architecture == "qwen3next" and source.endswith(_TOGETHER):
            continue  # written together, in float32 only
        routes = source.endswith(("ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight"))
        if source.endswith("ffn_gate_inp_shexp.weight"):
            rows = rows.ravel()
        routes |= source.endswith(("shortconv.conv.weight", "ssm_conv1d.weight"))
        if (order := gguf_order(model, name)) is not None:
            rows = rows.take(order[1], order[0])
        rows = -np.exp(rows) if source.endswith("ssm_a") else rows
        tensor_kind = kind if rows.ndim == 2 and not routes else Type.F32
        stored = _stored(rows, tensor_kind)
        writer.add_tensor(source, stored, raw_dtype=tensor_kind)
        rows = block_values(stored, tensor_kind).reshape(rows.shape)
        if source.endswith(("attn_qkv.weight", "ffn_up.weight")) and model.architecture == "phi3":
            continue  # written in float32 only
        if source.endswith("ssm_a"):
            continue  # written in float32 only
        if order is not None:
            rows = rows.take(np.argsort(order[1]), order[0])
        rows = deinterleave(model, rows) if permuted else rows.reshape(held[name].shape)
        held[name] = paired(model, name, rows, back=True)
    for name, source in gguf_experts(model).items():
        parts = [model.weights[name.format(e)] for e in range(model.experts)]
        own = (experts or kind) if parts[0].ndim == 2 else Type.F32
        packed = [_stored(rows, own) for rows in parts]
        writer.add_tensor(source, np.stack(packed), raw_dtype=own)
        for e, rows in enumerate(packed):
            held[name.format(e)] = block_values(rows, own).reshape(parts[e].shape)
    if model.rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", model.rope_freqs)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return replace(model, weights=held)


def _write_split(
    writer: gguf.GGUFWriter, model: TinyModel, source: str, rows: np.ndarray, kind: Type
) -> np.ndarray:
    """Writes what makes keys and values of latents as two tensors; returns what they hold."""
    parts = split(model, rows)
    for part, letter in zip(parts, "kv", strict=True):
        packed = [_stored(each, kind) for each in part]
        name = source.replace("attn_kv_b", f"attn_{letter}_b")
        writer.add_tensor(name, np.stack(packed), raw_dtype=kind)
        part[:] = [block_values(each, kind) for each in packed]
    return joined(model, *parts)


#: Weights that qwen3next files keep in one tensor.
_TOGETHER = ("ssm_beta.weight", "ssm_alpha.weight")


def _stored(rows: np.ndarray, kind: Type) -> np.ndarray:
    """Blocks of a tensor; random ones of the types that gguf cannot quantise to."""
    n, k = rows.shape if rows.ndim == 2 else (1, rows.size)
    if kind.name == "Q1_0":
        return random_signs(n, k)
    if kind.name.endswith("_K") or kind.name.startswith(("IQ1", "IQ2", "IQ3", "NVFP4")):
        return random_blocks(gguf_format(kind.name), n, k, plain=True)
    return gguf.quants.quantize(rows, kind)


#: Weights that phi3 files keep in the tensor of another one.
_FUSED_AWAY = ("k_proj.weight", "v_proj.weight", "gate_proj.weight")


def _fused(model: TinyModel, name: str, source: str, rows: np.ndarray) -> tuple[str, np.ndarray]:
    parts = {"q_proj": ("q_proj", "k_proj", "v_proj"), "up_proj": ("gate_proj", "up_proj")}
    for first, names in parts.items():
        if name.endswith(f"{first}.weight"):
            rows = np.concatenate([model.weights[name.replace(first, part)] for part in names])
    return source.replace("attn_q.", "attn_qkv."), rows


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


def logits(
    model: TinyModel, ids: np.ndarray, mask: np.ndarray, positions: np.ndarray
) -> np.ndarray:
    """Computes ``[B, S, V]`` in float64; queries that see no key come out as they may."""
    weights = {name: value.astype(np.float64) for name, value in model.weights.items()}
    tokens = np.arange(ids.shape[1])
    gemma = model.architecture.startswith("gemma")
    x = weights["model.embed_tokens.weight"][ids] * (model.hidden**0.5 if gemma else 1)
    x = x * model.factors[0]
    for layer in range(model.layers):
        name = f"model.layers.{layer}"
        near = tokens > tokens[:, None] - (model.window_of(layer) or len(tokens))
        seen = np.tril(near) & (mask[:, None, :] != 0)
        turn = turns(model, layer, positions)

        def norm(part: str, values: np.ndarray, name: str = name) -> np.ndarray:
            return rms_norm(model, values, weights[f"{name}.{part}_layernorm.weight"])

        y = norm("input", x)
        if convolves(model, layer):
            y = convolution(weights, f"{name}.conv", y, mask)
        elif latent_of(model) is not None:
            y = latent_attention(model, weights, f"{name}.self_attn", y, seen, turn)
        elif has_delta_net(model, layer):
            y = delta_net(weights, f"{name}.linear_attn", y, mask, model.epsilon)
        else:
            y = attention(model, weights, f"{name}.self_attn", y, seen, turn)
        x = x + (norm("post_attention", y) if model.norms_around else y * model.factors[2])
        y = norm("pre_feedforward" if model.norms_around else "post_attention", x)
        mixed = model.experts > 0 and layer >= model.dense_layers
        block = expert_block if mixed else feed_forward
        y = block(model, weights, f"{name}.mlp", y)
        y = y * model.factors[2]
        x = x + (norm("post_feedforward", y) if model.norms_around else y)
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    logits = rms_norm(model, x, weights["model.norm.weight"]) @ head.T / model.factors[3]
    return soft_cap(logits, model.soft_caps[1])
