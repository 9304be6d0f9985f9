"""Logits of the tiny models of `mambas` in NumPy and float64."""

from __future__ import annotations

from typing import Any

import numpy as np

from kit.mambas import EPSILON, HEAD_DIM, HEADS, KV_HEADS, ROUTED_SCALE, TOP, TinyMamba

Array = np.ndarray[Any, Any]


def mamba_logits(model: TinyMamba, ids: Array, mask: Array) -> Array:
    """Logits ``[B, S, V]``; positions count the tokens that the mask shows."""
    weights = {name: value.astype(np.float64) for name, value in model.weights.items()}
    x = weights["model.embed_tokens.weight"][ids] * model.scale("embedding_multiplier")
    residual = model.scale("residual_multiplier")
    gate, down = model.scales.get("mlp_multipliers", (1.0, 1.0))
    for number, kind in enumerate(model.layers):
        name = f"model.layers.{number}"

        def of(part: str, name: str = name) -> Array:
            return weights[f"{name}.{part}"]

        y = _norm(x, of("input_layernorm.weight"))
        mixed = np.zeros_like(x)
        if kind in "MB":
            mixed = mixed + _mamba(model, of, y, mask) * model.scale("ssm_out_multiplier")
        if kind in "*B":
            inner = y * model.scale("attention_in_multiplier")
            mixed = mixed + _attention(model, of, inner, mask) * model.scale(
                "attention_out_multiplier"
            )
        if model.one_block:
            if kind in "-E":
                up = np.maximum(y @ of("mlp.up_proj.weight").T, 0) ** 2
                mixed = up @ of("mlp.down_proj.weight").T
            x = x + mixed + (_ungated_experts(of, y) if kind == "E" else 0)
            continue
        x = x + mixed * residual
        y = _norm(x, of("post_attention_layernorm.weight"))
        hidden = _silu(y @ of("mlp.gate_proj.weight").T * gate) * (y @ of("mlp.up_proj.weight").T)
        block = hidden @ of("mlp.down_proj.weight").T * down
        if model.experts:
            block = block + _experts(of, y)
        x = x + block * residual
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    y = _norm(x, weights["model.norm.weight"]) @ head.T
    logits: Array = y * model.scale("lm_head_multiplier") / model.scale("logits_scaling")
    return logits


def _norm(x: Array, weight: Array) -> Array:
    normed: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPSILON) * weight
    return normed


def _silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def _mamba(model: TinyMamba, of: Any, x: Array, mask: Array) -> Array:
    shown = mask[..., None] != 0
    batch, length, _ = x.shape
    state = model.groups * model.d_state
    widths = [model.inner, model.inner, state, state, model.heads]
    projected = x @ of("mamba.in_proj.weight").T * model.scale("ssm_in_multiplier") * shown
    projected = projected * np.repeat(model.scales.get("ssm_multipliers", np.ones(5)), widths)
    z, u, dt = np.split(projected, [model.inner, model.inner + model.channels], axis=-1)
    taps = of("mamba.conv1d.weight")
    u = np.pad(u, ((0, 0), (taps.shape[1] - 1, 0), (0, 0)))
    u = np.sum([taps[:, j] * u[:, j : j + length] for j in range(taps.shape[1])], axis=0)
    u = _silu(u + of("mamba.conv1d.bias")) * shown
    v, b, c = np.split(u, [model.inner, model.inner + state], axis=-1)
    v = v.reshape(batch, length, model.heads, model.d_head)
    own = np.arange(model.heads) // (model.heads // model.groups)
    b, c = (part.reshape(batch, length, model.groups, -1)[:, :, own] for part in (b, c))
    steps = np.logaddexp(0, dt + of("mamba.dt_bias"))
    decay = np.exp(-np.exp(of("mamba.A_log")) * steps)
    h, y = np.zeros((batch, model.heads, model.d_state, model.d_head)), np.zeros_like(v)
    for t in range(length):
        added = b[:, t, :, :, None] * (steps[:, t, :, None] * v[:, t])[:, :, None]
        h = np.where(shown[:, t, None, None], decay[:, t, :, None, None] * h + added, h)
        y[:, t] = np.einsum("bhnp,bhn->bhp", h, c[:, t])
    y = (y + v * of("mamba.D")[:, None]).reshape(batch, length, -1)
    if not model.normed:
        y = y * _silu(z)
    else:
        y = y if model.norm_first else y * _silu(z)
        groups = y.reshape(batch, length, model.groups, -1)
        groups = groups / np.sqrt((groups**2).mean(-1, keepdims=True) + EPSILON)
        y = groups.reshape(y.shape) * of("mamba.norm.weight")
        y = y * _silu(z) if model.norm_first else y
    return np.asarray(y @ of("mamba.out_proj.weight").T)


def _attention(model: TinyMamba, of: Any, x: Array, mask: Array) -> Array:
    batch, length, _ = x.shape

    def heads(part: str, count: int) -> Array:
        rows = x @ of(f"self_attn.{part}_proj.weight").T
        return np.asarray(rows.reshape(batch, length, count, HEAD_DIM).swapaxes(1, 2))

    q, k, v = heads("q", HEADS), heads("k", KV_HEADS), heads("v", KV_HEADS)
    k = k * model.scale("key_multiplier")
    if model.rotary:
        positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
        frequencies = model.rope_base ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = np.tile(positions[:, None, :, None] * frequencies, 2)
        turned = [np.concatenate(np.split(-u, 2, -1)[::-1], -1) for u in (q, k)]
        for part in turned:
            part[..., HEAD_DIM // 2 :] *= -1
        q, k = (
            u * np.cos(angles) + t * np.sin(angles) for u, t in zip((q, k), turned, strict=True)
        )
    k, v = (np.repeat(part, HEADS // KV_HEADS, axis=1) for part in (k, v))
    scale = model.scales.get("attention_multiplier", HEAD_DIM**-0.5)
    scores = q @ k.swapaxes(2, 3) * scale
    seen = np.tril(np.ones((length, length), bool)) & (mask[:, None, None] != 0)
    scores = np.where(seen, scores, -1e30)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    y = scores / scores.sum(-1, keepdims=True) @ v
    y = y.swapaxes(1, 2).reshape(batch, length, -1)
    return np.asarray(y @ of("self_attn.o_proj.weight").T)


def _experts(of: Any, x: Array) -> Array:
    scores = x @ of("router").T
    chosen = np.argsort(-scores, axis=-1)[..., :TOP]
    best = np.take_along_axis(scores, chosen, -1)
    share = np.exp(best - best.max(-1, keepdims=True))
    share = share / share.sum(-1, keepdims=True)
    y = np.zeros_like(x)
    for at in np.ndindex(x.shape[:2]):
        for expert, part in zip(chosen[at], share[at], strict=True):
            gate, up = np.split(of("experts_in")[expert] @ x[at], 2)
            y[at] += part * (of("experts_out")[expert] @ (_silu(gate) * up))
    return y


def _ungated_experts(of: Any, x: Array) -> Array:
    """Those of Nemotron-H: sigmoids choose, with a correction, and weigh, without it."""
    scores = 1 / (1 + np.exp(-(x @ of("router").T)))
    chosen = np.argsort(-(scores + of("correction")), axis=-1)[..., :TOP]
    share = np.take_along_axis(scores, chosen, -1)
    share = ROUTED_SCALE * share / share.sum(-1, keepdims=True)
    y = np.zeros_like(x)
    for at in np.ndindex(x.shape[:2]):
        for expert, part in zip(chosen[at], share[at], strict=True):
            up = np.maximum(of("experts_in")[expert] @ x[at], 0) ** 2
            y[at] += part * (of("experts_out")[expert] @ up)
    return y
