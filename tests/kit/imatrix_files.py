"""Imatrix files of llama.cpp, written by hand from mean squares."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np

#: llama.cpp's names of a layer's weights, by the tensor ids of tamiz.
NAMES = {
    "attn_q": "attn_q",
    "attn_k": "attn_k",
    "attn_v": "attn_v",
    "attn_o": "attn_output",
    "ffn_gate": "ffn_gate",
    "ffn_up": "ffn_up",
    "ffn_down": "ffn_down",
}


def known_means(layers: int, hidden: int, ffn: int) -> dict[str, np.ndarray]:
    """Mean squares by the name of the weight, as a text of llama.cpp would give them."""
    rng = np.random.default_rng(5)
    means = {}
    for layer in range(layers):
        of_attention, of_ffn = (rng.uniform(0.1, 4, hidden).astype(np.float32) for _ in range(2))
        for tensor, name in NAMES.items():
            mean = of_ffn if tensor in ("ffn_gate", "ffn_up") else of_attention
            if tensor in ("attn_o", "ffn_down"):
                width = hidden if tensor == "attn_o" else ffn
                mean = rng.uniform(0.1, 4, width).astype(np.float32)
            means[f"blk.{layer}.{name}.weight"] = mean
    return means


def write_gguf(
    path: Path, means: Mapping[str, np.ndarray], count: float = 1024.0, kind: str = "imatrix"
) -> Path:
    """The GGUF form; means ``[experts, K]`` are those of experts."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type(kind)
    writer.add_array("imatrix.datasets", ["text.txt"])
    writer.add_uint32("imatrix.chunk_count", 2)
    writer.add_uint32("imatrix.chunk_size", 512)
    for name, mean in means.items():
        rows = np.atleast_2d(mean)
        writer.add_tensor(f"{name}.in_sum2", (rows * count).astype(np.float32))
        counts = np.full((len(rows), 1), count, np.float32)
        writer.add_tensor(f"{name}.counts", counts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_legacy(path: Path, means: Mapping[str, np.ndarray], calls: int = 2) -> Path:
    """The legacy form, with the number of chunks and the text's name at its end."""
    data = struct.pack("<i", len(means))
    for name, mean in means.items():
        encoded = name.encode()
        data += struct.pack("<i", len(encoded)) + encoded
        data += struct.pack("<ii", calls, mean.size) + (mean * calls).astype("<f4").tobytes()
    data += struct.pack("<ii", calls, 8) + b"text.txt"
    path.write_bytes(data)
    return path
