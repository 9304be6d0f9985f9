"""Keys and values of a tiny decoder that are made of a latent (DeepSeek, MiniCPM3, PLM)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kit.tiny_attention import rms_norm, rotate

if TYPE_CHECKING:
    import gguf

    from kit.tiny_gguf import TinyModel

#: Arguments of `tiny_gguf.random_model` by name.
LATENTS: dict[str, dict[str, Any]] = {
    "deepseek 2 lite": {
        "architecture": "deepseek2",
        "kv_heads": 4,
        "experts": 6,
        "dense_layers": 1,
        "layers": 3,
        "tied": False,
        "epsilon": 1e-6,
        "query_rank": 0,
        "yarn": (4.0, 16),
        "yarn_scale": 0.707,
    },
    "deepseek 3": {
        "architecture": "deepseek2",
        "kv_heads": 4,
        "sigmoids": True,
        "experts": 6,
        "groups": (3, 2),
        "dense_layers": 1,
        "layers": 3,
        "tied": False,
        "epsilon": 1e-6,
        "yarn": (4.0, 16),
        "yarn_scale": 1.0,
    },
    "minicpm3": {
        "architecture": "minicpm3",
        "kv_heads": 4,
        "epsilon": 1e-6,
        "long_factors": np.linspace(1, 3, 8, dtype=np.float32),
    },
    "plm": {"architecture": "plm", "kv_heads": 4, "epsilon": 1e-6, "query_rank": 0},
}
#: Architectures whose rotary pairs are neighbours, in transformers, too.
_PAIRED = ("deepseek2", "plm")


@dataclass(frozen=True)
class Latent:
    """Sizes: of the latent, of a key that does not rotate, of a value."""

    rank: int = 32
    nope: int = 32
    value_dim: int = 48


def latent_of(model: TinyModel) -> Latent | None:
    return Latent() if model.architecture in ("deepseek2", "minicpm3", "plm") else None


def attention_linears(model: TinyModel) -> int:
    """Linear layers of an attention, where q is split into what rotates and the rest."""
    if latent_of(model) is None:
        return 4
    return 6 if model.query_rank else 5


def latent_weights(
    model: TinyModel, name: str, normal: Callable[..., np.ndarray]
) -> dict[str, np.ndarray]:
    """The weights of the attention of the layer of that name, in transformers' layout."""
    latent, width, query = latent_of(model), model.hidden, "q_proj"
    assert latent is not None
    weights = {}
    if model.query_rank:
        width, query = model.query_rank, "q_b_proj"
        weights["q_a_proj"] = normal(width, model.hidden)
        weights["q_a_layernorm"] = 1 + normal(width)
    weights[query] = normal(model.heads * (latent.nope + model.rotary_dim), width)
    weights["kv_a_proj_with_mqa"] = normal(latent.rank + model.rotary_dim, model.hidden)
    weights["kv_a_layernorm"] = 1 + normal(latent.rank)
    weights["kv_b_proj"] = normal(model.heads * (latent.nope + latent.value_dim), latent.rank)
    weights["o_proj"] = normal(model.hidden, model.heads * latent.value_dim)
    return {f"{name}.self_attn.{part}.weight": value for part, value in weights.items()}


def paired(model: TinyModel, name: str, rows: np.ndarray, back: bool = False) -> np.ndarray:
    """Rows of a weight with rotary pairs as neighbours where sources have them, or back."""
    latent, rope = latent_of(model), model.rotary_dim
    if latent is None or model.architecture not in _PAIRED or rows.ndim != 2:
        return rows
    if name.endswith("kv_a_proj_with_mqa.weight"):
        first = [latent.rank]
    elif name.endswith(("q_proj.weight", "q_b_proj.weight")):
        size = latent.nope + rope
        first = [head * size + latent.nope for head in range(model.heads)]
    else:
        return rows
    order = np.arange(rope).reshape(2, -1).T.ravel()
    order = np.argsort(order) if back else order
    rows = rows.copy()
    for begin in first:
        rows[begin : begin + rope] = rows[begin + order]
    return rows


def split(model: TinyModel, both: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The matrix of keys and values as new files of DeepSeek have it: keys turned, and values."""
    latent = latent_of(model)
    assert latent is not None
    by_head = both.reshape(model.heads, -1, latent.rank)
    keys, values = by_head[:, : latent.nope], by_head[:, latent.nope :]
    return np.ascontiguousarray(keys.swapaxes(1, 2)), np.ascontiguousarray(values)


def joined(model: TinyModel, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """What `split` was given."""
    latent = latent_of(model)
    assert latent is not None
    return np.concatenate([keys.swapaxes(1, 2), values], 1).reshape(-1, latent.rank)


def add_latent_keys(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    """Writes the sizes of heads."""
    latent = latent_of(model)
    if latent is None:
        writer.add_key_length(model.head_dim)
        writer.add_value_length(model.head_dim)
        return
    key, value = latent.nope + model.rotary_dim, latent.value_dim
    writer.add_kv_lora_rank(latent.rank)
    if model.query_rank:
        writer.add_q_lora_rank(model.query_rank)
    if model.split:
        writer.add_key_length_mla(key)
        writer.add_value_length_mla(value)
        key, value = latent.rank + model.rotary_dim, latent.rank
    writer.add_key_length(key)
    writer.add_value_length(value)
    if model.yarn_scale:
        writer.add_rope_scaling_yarn_log_mul(0.1 * model.yarn_scale)


def latent_attention(model, weights, name, x, visible, turn) -> np.ndarray:
    """What attention adds to the residual stream, all heads' keys and values made in full."""
    latent = latent_of(model)
    assert latent is not None

    def weight(part: str) -> np.ndarray:
        return weights[f"{name}.{part}.weight"]

    if model.query_rank:
        q = rms_norm(model, x @ weight("q_a_proj").T, weight("q_a_layernorm"))
        q = q @ weight("q_b_proj").T
    else:
        q = x @ weight("q_proj").T
    q = q.reshape(*x.shape[:2], model.heads, -1)
    made = x @ weight("kv_a_proj_with_mqa").T
    c = rms_norm(model, made[..., : latent.rank], weight("kv_a_layernorm"))
    turned = rotate(made[..., latent.rank :], turn)
    both = (c @ weight("kv_b_proj").T).reshape(*x.shape[:2], model.heads, -1)
    scale = (latent.nope + model.rotary_dim) ** -0.5 * model.stretch
    out = np.zeros((*x.shape[:2], model.heads, latent.value_dim))
    for head in range(model.heads):
        query, key = q[:, :, head], both[:, :, head, : latent.nope]
        rotated = rotate(query[..., latent.nope :], turn)
        scores = query[..., : latent.nope] @ key.swapaxes(1, 2)
        scores = (scores + rotated @ turned.swapaxes(1, 2)) * scale
        scores = np.where(visible, scores, -1e30)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        share /= share.sum(-1, keepdims=True)
        out[:, :, head] = share @ both[:, :, head, latent.nope :]
    return out.reshape(*x.shape[:2], -1) @ weight("o_proj").T


def gguf_latents(model: TinyModel) -> Iterator[tuple[str, str]]:
    """Parts of the attention of a layer: in transformers, in GGUF."""
    if latent_of(model) is None:
        return
    yield "q_a_proj", "attn_q_a"
    yield "q_a_layernorm", "attn_q_a_norm"
    yield "q_b_proj", "attn_q_b"
    yield "kv_a_proj_with_mqa", "attn_kv_a_mqa"
    yield "kv_a_layernorm", "attn_kv_a_norm"
    yield "kv_b_proj", "attn_kv_b"
