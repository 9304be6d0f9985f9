"""Gated delta nets of a tiny Qwen 3.5: their weights, their keys, and their values in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import gguf

    from kit.tiny_gguf import TinyModel

_SHAPE: dict[str, Any] = {
    "layers": 4,
    "head_dim": 32,
    "rotary_dim": 8,
    "taps": 4,
    "rope_base": 1e6,
    "epsilon": 1e-6,
}
#: Arguments of `tiny_gguf.random_model` by architecture.
DELTA_NETS: dict[str, dict[str, Any]] = {
    "qwen35": {"architecture": "qwen35", **_SHAPE},
    "qwen35moe": {"architecture": "qwen35moe", "experts": 6, "top": 3, **_SHAPE},
    "qwen3next": {
        "architecture": "qwen3next",
        "experts": 6,
        "top": 3,
        "tied": False,
        **_SHAPE,
    },
}
#: Of heads of keys and of values, and how long each is.
KEY_HEADS, VALUE_HEADS, SIZE = 2, 4, 32
_GROUP = VALUE_HEADS // KEY_HEADS
_KEYS, _VALUES = KEY_HEADS * SIZE, VALUE_HEADS * SIZE
#: Names in transformers → in GGUF, without the layer.
GGUF_NAMES = {
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}


def gated(model: TinyModel) -> bool:
    """Whether attention has a gate on its output, and other layers a gated delta net."""
    return model.architecture in DELTA_NETS


def has_delta_net(model: TinyModel, layer: int) -> bool:
    """Whether a layer has a gated delta net: all but each fourth."""
    return gated(model) and layer % 4 != 3


def delta_weights(
    name: str, model: TinyModel, normal: Callable[..., np.ndarray]
) -> dict[str, np.ndarray]:
    """The weights of the layer of that name."""
    shapes = {
        "in_proj_qkv.weight": (2 * _KEYS + _VALUES, model.hidden),
        "in_proj_z.weight": (_VALUES, model.hidden),
        "in_proj_b.weight": (VALUE_HEADS, model.hidden),
        "in_proj_a.weight": (VALUE_HEADS, model.hidden),
        "out_proj.weight": (model.hidden, _VALUES),
        "dt_bias": (VALUE_HEADS,),
    }
    found = {part: normal(*shape) for part, shape in shapes.items()}
    found["conv1d.weight"] = normal(2 * _KEYS + _VALUES, model.taps, scale=0.6)
    found["A_log"] = normal(VALUE_HEADS, scale=0.5)
    found["norm.weight"] = 1 + normal(SIZE)
    return {f"{name}.linear_attn.{part}": value for part, value in found.items()}


def add_delta_keys(writer: gguf.GGUFWriter, model: TinyModel) -> None:
    """Writes the heads, and which layers attend."""
    if not gated(model):
        return
    writer.add_ssm_conv_kernel(model.taps)
    writer.add_ssm_state_size(SIZE)
    writer.add_ssm_group_count(KEY_HEADS)
    writer.add_ssm_time_step_rank(VALUE_HEADS)
    writer.add_ssm_inner_size(_VALUES)
    writer.add_full_attention_interval(4)
    writer.add_rope_dimension_sections([1, 1, 2, 0])


def gguf_order(model: TinyModel, name: str) -> tuple[int, np.ndarray] | None:
    """Axis and old places of what a GGUF has in another order: value heads side by side.

    `name` is that of transformers; None where the order is the same.
    """
    if model.architecture not in ("qwen35", "qwen35moe") or ".linear_attn." not in name:
        return None
    heads = np.arange(VALUE_HEADS).reshape(KEY_HEADS, _GROUP).T.ravel()
    wide = (heads[:, None] * SIZE + np.arange(SIZE)).ravel()
    part = name.rpartition("linear_attn.")[2].removesuffix(".weight")
    if part in ("in_proj_qkv", "conv1d"):
        return 0, np.concatenate([np.arange(2 * _KEYS), 2 * _KEYS + wide])
    if part in ("in_proj_b", "in_proj_a", "A_log", "dt_bias"):
        return 0, heads
    return {"in_proj_z": (0, wide), "out_proj": (1, wide)}.get(part)


def gguf_rows(model: TinyModel, name: str) -> tuple[str, np.ndarray] | None:
    """The tensor of a layer of Qwen3-Next that holds b and a, in place of that of b; else None."""
    layer, _, part = name.partition(".linear_attn.")
    if model.architecture != "qwen3next" or part != "in_proj_b.weight":
        return None
    rows = by_key_heads(model.weights, layer)[f"{layer}.linear_attn.in_proj_ba.weight"]
    return f"blk.{layer.rpartition('.')[2]}.ssm_ba.weight", rows


def by_key_heads(weights: dict[str, np.ndarray], layer: str) -> dict[str, np.ndarray]:
    """The projections of a layer as Qwen3-Next has them in transformers."""

    def joined(*parts: np.ndarray) -> np.ndarray:
        rows = [part.reshape(KEY_HEADS, -1, part.shape[1]) for part in parts]
        return np.concatenate(rows, axis=1).reshape(-1, parts[0].shape[1])

    name = f"{layer}.linear_attn.in_proj"
    qkv = np.split(weights[f"{name}_qkv.weight"], [_KEYS, 2 * _KEYS])
    z, b, a = (weights[f"{name}_{part}.weight"] for part in "zba")
    return {f"{name}_qkvz.weight": joined(*qkv, z), f"{name}_ba.weight": joined(b, a)}


def delta_config(model: TinyModel) -> dict[str, Any]:
    """What ``config.json`` says of it."""
    sizes = {"num_key_heads": KEY_HEADS, "num_value_heads": VALUE_HEADS}
    sizes |= {"key_head_dim": SIZE, "value_head_dim": SIZE, "conv_kernel_dim": model.taps}
    layers = range(model.layers)
    kinds = ["linear" if has_delta_net(model, layer) else "full" for layer in layers]
    rotary = {"rope_type": "default", "rope_theta": model.rope_base}
    rotary |= {"partial_rotary_factor": model.rotary_dim / model.head_dim}
    values: dict[str, Any] = {f"linear_{name}": value for name, value in sizes.items()}
    values |= {"layer_types": [f"{kind}_attention" for kind in kinds], "rope_parameters": rotary}
    if model.architecture != "qwen3next":
        rotary |= {"mrope_section": [1, 1, 2], "mrope_interleaved": True}
    if model.experts:
        values |= {"moe_intermediate_size": model.expert_ffn}
        values |= {"shared_expert_intermediate_size": model.shared_ffn}
    if model.architecture == "qwen3next":
        values["norm_topk_prob"] = True
    return values


def delta_tensors(model: TinyModel, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The weights as transformers stores them: norms less 1, and of Qwen3-Next by key heads."""
    stored = {}
    for name, value in found.items():
        if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
            value = value - np.float32(1)
        stored[name] = value[:, None] if name.endswith("conv1d.weight") else value
    for layer in range(model.layers if model.architecture == "qwen3next" else 0):
        name = f"model.layers.{layer}"
        if has_delta_net(model, layer):
            stored |= by_key_heads(found, name)
            for part in ("qkv", "z", "b", "a"):
                del stored[f"{name}.linear_attn.in_proj_{part}.weight"]
    return stored


def _silu(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / (1 + np.exp(-x)))


def delta_net(
    weights: dict[str, np.ndarray], name: str, x: np.ndarray, mask: np.ndarray, epsilon: float
) -> np.ndarray:
    """What a gated delta net adds to the residual stream, in float64; padding is nothing."""
    shown = mask[..., None] != 0
    x = x * shown

    def project(part: str) -> np.ndarray:
        return np.asarray(x @ weights[f"{name}.in_proj_{part}.weight"].T)

    taps = weights[f"{name}.conv1d.weight"]
    count = taps.shape[1]
    u = np.pad(project("qkv"), ((0, 0), (count - 1, 0), (0, 0)))
    length = x.shape[1]
    u = _silu(np.sum([taps[:, j] * u[:, j : j + length] for j in range(count)], axis=0))
    q, k, v = np.split(u, [_KEYS, 2 * _KEYS], axis=-1)
    q, k = (part.reshape(*part.shape[:2], KEY_HEADS, SIZE) for part in (q, k))
    q, k = (part / np.sqrt((part**2).sum(-1, keepdims=True) + 1e-6) for part in (q, k))
    v, z = (part.reshape(*part.shape[:2], VALUE_HEADS, SIZE) for part in (v, project("z")))
    beta = 1 / (1 + np.exp(-project("b")))
    steps = np.logaddexp(0, project("a") + weights[f"{name}.dt_bias"])
    decay = np.exp(-np.exp(weights[f"{name}.A_log"]) * steps)
    out = np.zeros_like(v)
    for row in range(len(x)):
        for head in range(VALUE_HEADS):
            state, own = np.zeros((SIZE, SIZE)), head // _GROUP
            for t in range(length):
                key = k[row, t, own]
                state = state * decay[row, t, head]
                state += np.outer(key, beta[row, t, head] * (v[row, t, head] - state.T @ key))
                out[row, t, head] = state.T @ q[row, t, own] / np.sqrt(SIZE)
    out = out / np.sqrt((out**2).mean(-1, keepdims=True) + epsilon)
    out = out * weights[f"{name}.norm.weight"] * _silu(z)
    return np.asarray(out.reshape(*x.shape[:2], -1) @ weights[f"{name}.out_proj.weight"].T)
