"""Tiny models of the architectures with experts, and of Granite, which has them or not."""

from __future__ import annotations

from typing import Any

#: Arguments of `tiny_gguf.random_model` by architecture.
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"experts": 5, "tied": False},
    "qwen2moe": {"architecture": "qwen2moe", "experts": 5, "biases": True},
    "qwen3moe": {
        "architecture": "qwen3moe",
        "experts": 6,
        "top": 3,
        "head_dim": 32,
        "rotary_dim": 32,
    },
    "olmoe": {"architecture": "olmoe", "experts": 4, "tied": False},
    "granite": {"architecture": "granite"},
    "granitemoe": {"architecture": "granitemoe", "experts": 4, "tied": False},
}
