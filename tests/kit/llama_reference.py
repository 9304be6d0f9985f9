"""The tiny llama in NumPy, float64, with what techniques do at its sites written into the equation.

For tokens t_0 … of one sequence, layer by layer:

    h = norm(x)    x += o(attention(q(h), k(h), v(h)))
    h = norm(x)    x += down(silu(gate(h)) · up(h))
    logits = head(norm(x))

Every linear is y = (x · mask) Ŵᵀ, attention sees the keys that a rule leaves, and the head may be a
shortlist. Nothing here knows the graph, the kernels or the techniques' code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.files.bundle import Bundle
from tamiz.plugins import Plugins
from tamiz.survey.survey import Survey, survey

Array = NDArray[Any]


@dataclass
class Llama:
    """The model with its dense weights; replace entries to compose.

    Attributes:
        weights: Ŵ ``[N, K]`` by site id.
        norms: Weights of the norms by name of the initializer.
        masks: What is left of the input of a site, by site id.
        sees: Which keys query i may attend to, ``sees(i, j)`` on arrays, after causality.
        head: Logits of the last hidden state; the plain product where it is None.
        activation: Of the gate.
    """

    weights: dict[str, Array]
    norms: dict[str, Array]
    heads: int
    kv_heads: int
    epsilon: float
    theta: float
    masks: dict[str, Callable[[Array], Array]] = field(default_factory=dict)
    sees: Callable[[Array, Array], Array] = lambda i, j: j <= i
    head: Callable[[Array], Array] | None = None
    activation: Callable[[Array], Array] = lambda gate: gate / (1 + np.exp(-gate))

    @property
    def layers(self) -> int:
        return sum(name.endswith("input_layernorm.weight") for name in self.norms)

    def linear(self, site: str, x: Array) -> Array:
        masked = self.masks[site](x) if site in self.masks else x
        return masked @ self.weights[site].T

    def norm(self, name: str, x: Array) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.epsilon) * self.norms[name]

    def rotate(self, x: Array) -> Array:
        """Rotary embedding of ``[tokens, heads, size]``, pairs (i, i + size / 2)."""
        half = x.shape[-1] // 2
        frequency = self.theta ** (-np.arange(half) / half)
        angle = np.arange(len(x))[:, None, None] * frequency
        a, b = x[..., :half], x[..., half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attention(self, q: Array, k: Array, v: Array) -> Array:
        tokens, group = len(q), self.heads // self.kv_heads
        q = self.rotate(q.reshape(tokens, self.heads, -1))
        k = np.repeat(self.rotate(k.reshape(tokens, self.kv_heads, -1)), group, axis=1)
        v = np.repeat(v.reshape(tokens, self.kv_heads, -1), group, axis=1)
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
        i, j = np.mgrid[:tokens, :tokens]
        scores = np.where((j <= i) & self.sees(i, j), scores, -np.inf)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return np.einsum("hij,jhd->ihd", p, v).reshape(tokens, -1)

    def logits(self, tokens: list[int]) -> Array:
        """After every token, ``[tokens, V]``."""
        x = self.weights["tok_embd"][tokens]
        for layer in range(self.layers):

            def at(name: str, h: Array, layer: int = layer) -> Array:
                return self.linear(f"layers.{layer}.{name}", h)

            h = self.norm(f"model.layers.{layer}.input_layernorm.weight", x)
            x = x + at("attn_o", self.attention(at("attn_q", h), at("attn_k", h), at("attn_v", h)))
            h = self.norm(f"model.layers.{layer}.post_attention_layernorm.weight", x)
            gate = self.activation(at("ffn_gate", h))
            x = x + at("ffn_down", gate * at("ffn_up", h))
        h = self.norm("model.norm.weight", x)
        return self.linear("output", h) if self.head is None else self.head(h)


def dense_llama(folder: Path, plugins: Plugins) -> tuple[Llama, Survey]:
    """The reference of a dense bundle with nothing composed yet, and its sites."""
    bundle = Bundle.open(folder)
    found = survey(bundle, plugins)
    config: Mapping[str, Any] = bundle.json("config.json")
    constants = {
        name: value.const_value.numpy().astype(np.float64)
        for name, value in found.model.graph.initializers.items()
        if value.const_value is not None
    }
    weights = {
        site.id: constants[site.weight] if site.transposed else constants[site.weight].T
        for site in found.sites
        if site.weight is not None
    }
    llama = Llama(
        weights=weights,
        norms={name: value for name, value in constants.items() if "norm" in name},
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        epsilon=config["rms_norm_eps"],
        theta=config.get("rope_theta", 10000.0),
    )
    return llama, found
