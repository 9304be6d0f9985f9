"""A llama whose greedy text is known: after token t comes `follow[t]`, on every machine.

Its layer adds nothing (o_proj and down_proj are zero, norms one). Embeddings are random unit rows,
and row j of the head is the sum of the embeddings of the tokens that j follows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kit import tiny_gguf
from tamiz.files.bundle import Source, write_manifest
from tamiz.plugins import Plugins
from tamiz.survey.export import export

#: Text of every token but the control tokens.
TOKENS = tiny_gguf.byte_level_tokens()


def ids(text: str) -> list[int]:
    """Tokens of ASCII letters and control tokens: `ids("hi<|im_end|>")`."""
    found = []
    while text:
        name = next((name for name in tiny_gguf.SPECIAL if text.startswith(name)), text[0])
        found.append(TOKENS.index(name))
        text = text[len(name) :]
    return found


def bundle(folder: Path, text: list[int], plugins: Plugins, **metadata: Any) -> Path:
    """A dense bundle that says the tokens of `text` one after the other, then the last for ever."""
    model = tiny_gguf.random_model(hidden=256, layers=1, tied=False)
    random = np.random.default_rng(0)
    rows = random.standard_normal((model.vocabulary, model.hidden)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    head = np.zeros_like(rows)
    for token, following in [*pairwise(text), (text[-1], text[-1])]:
        head[following] += rows[token]
    for name, weight in model.weights.items():
        weight[...] = 1 if "norm" in name else 0 if "o_proj" in name or "down" in name else weight
    model.weights["model.embed_tokens.weight"][...] = rows
    model.weights["lm_head.weight"][...] = head
    tiny_gguf.write(folder / "chain.gguf", model, **metadata)
    return export(str(folder / "chain.gguf"), folder / "chain", plugins, "float32").path


def change(folder: Path, **files: Mapping[str, Any] | None) -> Path:
    """Replaces JSON files of a bundle (`generation_config={…}`; None deletes the file)."""
    for name, content in files.items():
        path = folder / f"{name}.json"
        if content is None:
            path.unlink()
        else:
            path.write_text(json.dumps(content), "utf-8")
    write_manifest(folder, "dense", Source("changed by a test"))
    return folder


def read(folder: Path, name: str) -> dict[str, Any]:
    """A JSON file of a bundle."""
    content: dict[str, Any] = json.loads((folder / f"{name}.json").read_text("utf-8"))
    return content
