"""A made BitNet in the shape of BitNet b1.58 2B4T: writes its GGUF, for the benchmark peers.

    python -m benchmarks made-bitnet made.gguf [--layers 30]
    tamiz build made.gguf -o made
    python -m benchmarks peers made --gguf made.gguf --context 128 --json FILE

Linear layers are random TQ2_0 blocks. The embedding, which is the head, too, is Q6_K. The
activation is SiLU, the only one that llama.cpp 0.3.36 has for this architecture, so that both
compute the same.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

from benchmarks.engines.large_model import add_vocabulary, blocks

HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 2560, 6912, 20, 5, 128, 128256
#: d of a block, and what its levels are: each field of 2 bits is 0, 1 or 2.
FACTOR = 0.03


def matrices(layers: int) -> dict[str, tuple[int, int]]:
    """Shape [outputs, inputs] of every ternary matrix."""
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    of = {"attn_q": (q, HIDDEN), "attn_k": (kv, HIDDEN), "attn_v": (kv, HIDDEN)}
    of |= {"attn_output": (HIDDEN, q), "ffn_gate": (FFN, HIDDEN), "ffn_up": (FFN, HIDDEN)}
    of["ffn_down"] = (HIDDEN, FFN)
    return {f"blk.{layer}.{name}": of[name] for layer in range(layers) for name in of}


def norms(layers: int) -> dict[str, int]:
    """Width of every norm."""
    of = {"attn_norm": HIDDEN, "attn_sub_norm": HEADS * HEAD_DIM, "ffn_norm": HIDDEN}
    of["ffn_sub_norm"] = FFN
    every = {f"blk.{layer}.{name}": of[name] for layer in range(layers) for name in of}
    return {**every, "output_norm": HIDDEN}


def ternary(shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Random blocks of TQ2_0."""
    values, size = GGML_QUANT_SIZES[Type.TQ2_0]
    table = np.empty((shape[0] * shape[1] // values, size), np.uint8)
    levels = rng.integers(0, 3, (len(table), size - 2, 4), dtype=np.uint8)
    table[:, :-2] = (levels << np.array([0, 2, 4, 6], np.uint8)).sum(-1, dtype=np.uint8)
    table[:, -2:] = np.frombuffer(np.float16(FACTOR).tobytes(), np.uint8)
    return table.reshape(shape[0], -1)


def write(path: Path, layers: int) -> None:
    """Writes the file, one tensor in memory at a time."""
    writer = gguf.GGUFWriter(path, "bitnet")
    writer.add_context_length(4096)
    writer.add_block_count(layers)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_string("bitnet.hidden_activation", "silu")
    add_vocabulary(writer, VOCABULARY)
    shapes = {"token_embd": (VOCABULARY, HIDDEN), **matrices(layers)}
    for name, (rows, columns) in shapes.items():
        kind = Type.Q6_K if name == "token_embd" else Type.TQ2_0
        values, size = GGML_QUANT_SIZES[kind]
        row = columns // values * size
        stored = (rows, row), np.dtype(np.uint8), rows * row
        writer.add_tensor_info(f"{name}.weight", *stored, kind)
    for name, width in norms(layers).items():
        writer.add_tensor_info(f"{name}.weight", (width,), np.dtype(np.float32), 4 * width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        embedding = name == "token_embd"
        writer.write_tensor_data(
            blocks(shape, Type.Q6_K, rng) if embedding else ternary(shape, rng)
        )
    for width in norms(layers).values():
        writer.write_tensor_data(np.ones(width, np.float32))
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the GGUF to write")
    parser.add_argument("--layers", type=int, default=30)
    options = parser.parse_args()
    write(options.file, options.layers)
    print(f"{options.file}: {options.file.stat().st_size / 1e9:.3f} GB")


if __name__ == "__main__":
    main()
