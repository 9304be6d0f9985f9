"""Folders of Hugging Face with random encoders, written without torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from kit.encoders import WORDS, write_tokenizer


def _case() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    ids = generator.integers(4, WORDS, (3, 37))
    mask = np.ones_like(ids)
    mask[1, 20:] = mask[2, 5:] = 0
    types = generator.integers(0, 2, ids.shape)
    return np.where(mask == 1, ids, 1), mask, types


#: Ids, mask and kinds of three texts of different lengths, with padding on the right.
CASE = _case()


def random_tensors(shapes: Mapping[str, Sequence[int]]) -> dict[str, np.ndarray]:
    """Tensors of an encoder; those of norms are about 1."""
    generator = np.random.default_rng(1)
    found = {}
    for name, shape in shapes.items():
        values = generator.standard_normal(shape, np.float32)
        scale = 0.3 if len(shape) == 1 else float(shape[-1]) ** -0.5
        around = 1.0 if "norm" in name.lower() and name.endswith("weight") else 0.0
        found[name] = (scale * values + around).astype(np.float32)
    return found


def write_folder(
    folder: Path, config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> Path:
    """A folder with a configuration, safetensors and a tokenizer."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors")
    write_tokenizer(folder)
    return folder
