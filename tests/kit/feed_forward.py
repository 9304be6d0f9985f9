"""Feed-forward blocks of the tiny decoder in NumPy, and mixtures of them, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from kit.tiny_gguf import TinyModel


def expert_block(
    model: TinyModel, weights: dict[str, np.ndarray], name: str, x: np.ndarray
) -> np.ndarray:
    """What a mixture of experts gives, in float64."""
    scores = x @ weights[f"{name}.gate.weight"].T
    share = np.exp(scores - scores.max(-1, keepdims=True))
    share /= share.sum(-1, keepdims=True)
    ranked = share + weights.get(f"{name}.gate_correction.bias", 0)
    best = np.argsort(-ranked, -1, kind="stable")[..., : model.top]
    taken = np.zeros_like(share)
    np.put_along_axis(taken, best, np.take_along_axis(share, best, -1), -1)
    if model.architecture not in ("qwen2moe", "olmoe"):
        taken /= taken.sum(-1, keepdims=True)
    y = np.zeros_like(x)
    for e in range(model.experts):
        y += taken[..., e : e + 1] * feed_forward(model, weights, f"{name}.experts.{e}", x)
    if f"{name}.shared_expert.up_proj.weight" in weights:
        gate: np.ndarray | float = 1.0
        if f"{name}.shared_expert_gate.weight" in weights:
            gate = 1 / (1 + np.exp(-x @ weights[f"{name}.shared_expert_gate.weight"].T))
        y += gate * feed_forward(model, weights, f"{name}.shared_expert", x)
    return y


def feed_forward(
    model: TinyModel, weights: dict[str, np.ndarray], name: str, x: np.ndarray
) -> np.ndarray:
    up = x @ weights[f"{name}.up_proj.weight"].T
    if model.architecture == "arcee":
        hidden = np.maximum(up, 0) ** 2
    else:
        gate = x @ weights[f"{name}.gate_proj.weight"].T
        gemma = model.architecture.startswith("gemma")
        hidden = (_gelu(gate) if gemma else gate / (1 + np.exp(-gate))) * up
    return hidden @ weights[f"{name}.down_proj.weight"].T


def _gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
