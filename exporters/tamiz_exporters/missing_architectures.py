"""Architectures that are known by name and not read, and what the decoder graph lacks for them."""

from __future__ import annotations

#: What tamiz' decoder graph lacks for architectures that are known, by `general.architecture`.
MISSING = {
    **dict.fromkeys(("deepseek32", "glm-dsa"), "attention to keys that an indexer chooses"),
    **dict.fromkeys(("rwkv6", "rwkv7"), "layers of a kind that tamiz lacks"),
    "jais": "scores that are divided by the length of a head",
}
