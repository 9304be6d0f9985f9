"""Norms, rotary embedding and attention of the tiny decoder in NumPy, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kit.delta_nets import gated

if TYPE_CHECKING:
    from kit.tiny_gguf import TinyModel


def soft_cap(x: np.ndarray, cap: float) -> np.ndarray:
    return cap * np.tanh(x / cap) if cap else x


def rms_norm(model: TinyModel, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + model.epsilon) * weight


def turns(model: TinyModel, layer: int, positions: np.ndarray) -> np.ndarray:
    """What rotary pairs of a layer are multiplied by, as complex numbers ``[B, S, R/2]``."""
    half, length, base = model.rotary_dim // 2, 1.0, model.rope_base
    if model.architecture == "smollm3" and layer % 4 == 3:
        return np.ones((*positions.shape, half), complex)
    if model.window_of(layer) and model.architecture == "gemma3":
        return np.exp(1j * positions[..., None] * 1e4 ** (-np.arange(half) / half))
    frequency = base ** (-np.arange(half) / half) / model.rope_factor
    if model.rope_freqs is not None:
        frequency = frequency / model.rope_freqs
    if model.long_factors is not None:  # of a context of 512 tokens, 128 originally
        frequency, length = frequency / model.long_factors, np.sqrt(1 + np.log(4) / np.log(128))
    if model.yarn:
        factor, context = model.yarn
        pair = [half * np.log(context / (n * 2 * np.pi)) / np.log(base) for n in (32, 1)]
        if model.architecture != "gpt-oss":
            pair = [np.floor(pair[0]), np.ceil(pair[1])]
        low, high = max(pair[0], 0), min(pair[1], 2 * half - 1)
        ramp = np.clip((np.arange(half) - low) / (high - low), 0, 1)
        frequency = frequency / factor * ramp + frequency * (1 - ramp)
        length = 1.0 if model.yarn_scale else 0.1 * np.log(factor) + 1
    return length * np.exp(1j * positions[..., None] * frequency)


def rotate(x: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """Rotates ``[B, S, D]`` as complex numbers."""
    half = turn.shape[-1]
    turned = (x[..., :half] + 1j * x[..., half : 2 * half]) * turn
    return np.concatenate([turned.real, turned.imag, x[..., 2 * half :]], axis=-1)


def attention(model, weights, name, x, visible, turn) -> np.ndarray:
    def project(part: str) -> np.ndarray:
        bias = weights.get(f"{name}.{part}_proj.bias", 0)
        y = x @ weights[f"{name}.{part}_proj.weight"].T + bias
        if model.architecture == "olmoe" and f"{name}.{part}_norm.weight" in weights:
            y = rms_norm(model, y, weights[f"{name}.{part}_norm.weight"])
        y = y.reshape(*y.shape[:2], -1, model.head_dim)
        if model.architecture != "olmoe" and f"{name}.{part}_norm.weight" in weights:
            y = rms_norm(model, y, weights[f"{name}.{part}_norm.weight"])
        return y

    gate: float | np.ndarray = 1.0
    if gated(model):  # the rows of each head of q are followed by those of its gate
        both = weights[f"{name}.q_proj.weight"].reshape(model.heads, 2, model.head_dim, -1)
        q_rows, gates = (both[:, part].reshape(-1, both.shape[-1]) for part in (0, 1))
        weights = weights | {f"{name}.q_proj.weight": q_rows}
        gate = 1 / (1 + np.exp(-(x @ gates.T)))
    q, k, v = project("q"), project("k"), project("v")
    out = np.zeros_like(q)
    for head in range(model.heads):
        kv_head = head // (model.heads // model.kv_heads)
        scores = rotate(q[:, :, head], turn) @ rotate(k[:, :, kv_head], turn).swapaxes(1, 2)
        scores = soft_cap(scores * (model.factors[1] or model.head_dim**-0.5), model.soft_caps[0])
        scores = np.where(visible, scores, -1e30)
        share = np.exp(scores - scores.max(-1, keepdims=True))
        total = share.sum(-1, keepdims=True)
        if f"{name}.sinks.weight" in weights:
            total = total + np.exp(
                weights[f"{name}.sinks.weight"][head] - scores.max(-1)[..., None]
            )
        out[:, :, head] = share / total @ v[:, :, kv_head]
    y = out.reshape(*x.shape[:2], -1) * gate
    if f"{name}.attn_sub_norm.weight" in weights:
        y = rms_norm(model, y, weights[f"{name}.attn_sub_norm.weight"])
    y = y @ weights[f"{name}.o_proj.weight"].T
    return y + weights.get(f"{name}.o_proj.bias", 0)
