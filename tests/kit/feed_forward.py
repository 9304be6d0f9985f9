"""Feed-forward blocks of the tiny decoder in NumPy, and mixtures of them, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kit.mixtures import ROUTED_SCALE, has_sigmoids
from kit.tiny_attention import rms_norm

if TYPE_CHECKING:
    from kit.tiny_gguf import TinyModel


def expert_block(
    model: TinyModel, weights: dict[str, np.ndarray], name: str, x: np.ndarray
) -> np.ndarray:
    """What a mixture of experts gives, in float64."""
    scores = x @ weights[f"{name}.gate.weight"].T + weights.get(f"{name}.gate.bias", 0)
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    if has_sigmoids(model):
        share = 1 / (1 + np.exp(-scores))
    ranked = share + weights.get(f"{name}.gate_correction.bias", 0)
    ranked = _of_groups(ranked, *model.groups)
    best = np.argsort(-ranked, -1, kind="stable")[..., : model.top]
    taken = np.zeros_like(share)
    np.put_along_axis(taken, best, np.take_along_axis(share, best, -1), -1)
    softmax_kept = model.architecture in ("qwen2moe", "olmoe", "deepseek2")
    if not softmax_kept or has_sigmoids(model):
        taken /= taken.sum(-1, keepdims=True)
    if model.architecture in ("glm4moe", "deepseek2"):
        taken *= ROUTED_SCALE
    y = np.zeros_like(x)
    for e in range(model.experts):
        y += taken[..., e : e + 1] * feed_forward(model, weights, f"{name}.experts.{e}", x)
    if f"{name}.shared_expert.up_proj.weight" in weights:
        gate: np.ndarray | float = 1.0
        if f"{name}.shared_expert_gate.weight" in weights:
            gate = 1 / (1 + np.exp(-x @ weights[f"{name}.shared_expert_gate.weight"].T))
        y += gate * feed_forward(model, weights, f"{name}.shared_expert", x)
    return y


def _of_groups(ranked: np.ndarray, groups: int, top: int) -> np.ndarray:
    """-inf for experts of other groups than those with the largest sums of their two best."""
    grouped = ranked.reshape(*ranked.shape[:-1], groups, -1)
    sums = np.sort(grouped, -1)[..., -2:].sum(-1)
    least = np.sort(sums, -1)[..., -top, None]
    return np.where((sums >= least)[..., None], grouped, -np.inf).reshape(ranked.shape)


def feed_forward(
    model: TinyModel, weights: dict[str, np.ndarray], name: str, x: np.ndarray
) -> np.ndarray:
    up = _product(weights, f"{name}.up_proj", x)
    if model.architecture == "gpt-oss":
        gate = np.minimum(_product(weights, f"{name}.gate_proj", x), 7)
        hidden = gate / (1 + np.exp(-1.702 * gate)) * (np.clip(up, -7, 7) + 1)
    elif model.architecture in ("arcee", "plm"):
        hidden = np.maximum(up, 0) ** 2
    else:
        gate = x @ weights[f"{name}.gate_proj.weight"].T
        hidden = _activated(model, gate) * up
    if (norm := f"{name}.ffn_sub_norm.weight") in weights:
        hidden = rms_norm(model, hidden, weights[norm])
    return _product(weights, f"{name}.down_proj", hidden)


def _product(weights: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)


def _activated(model: TinyModel, x: np.ndarray) -> np.ndarray:
    if model.architecture.startswith("bitnet"):
        return np.maximum(x, 0) ** 2
    return _gelu(x) if model.architecture.startswith("gemma") else x / (1 + np.exp(-x))


def _gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
