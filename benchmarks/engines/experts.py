"""A made mixture of experts: decode speed beside what the bytes of chosen experts predict.

    python -m benchmarks experts /big/folder [--shape small|8b] [--threads 2] [--json FILE] \
        [--llama-cpp other-venv/bin/python]

The GGUF is a Qwen3-MoE of random Q4_K blocks, with an embedding and a head in Q6_K. It is written
tensor by tensor, exported, built and measured; what was written is removed in the end. A decode
step reads all of attention, routers and head, and of each layer the experts that the token takes.
``predicted_tok_s`` is what the read probe says that reading them takes. With an interpreter that
has llama-cpp-python, llama.cpp runs the same file in turns with tamiz.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

from benchmarks.common import record
from benchmarks.engines.large_model import (
    SOURCE,
    add_vocabulary,
    bench_made,
    blocks,
    build_made,
)
from benchmarks.engines.peers import PEERS, started
from tamiz.evaluation import bench

VOCABULARY, CONTEXT, HEAD_DIM = 32000, 4096, 128
#: Tokens before those that are decoded beside llama.cpp.
CONTEXT_LENGTH = 128


@dataclass(frozen=True)
class Shape:
    """Sizes of a mixture."""

    hidden: int
    ffn: int  # of an expert
    layers: int
    heads: int
    kv_heads: int
    experts: int
    top: int


SHAPES = {
    "small": Shape(1024, 512, 12, 8, 2, 48, 4),  # 1 billion weights, 0.2 of a token
    "8b": Shape(2048, 768, 16, 16, 4, 96, 8),  # 8 billion weights, 1 of a token
}


def tensors(of: Shape) -> dict[str, tuple[tuple[int, ...], Type]]:
    """Shape [..., outputs, inputs] and type of every matrix."""
    q, kv = of.heads * HEAD_DIM, of.kv_heads * HEAD_DIM
    made: dict[str, tuple[tuple[int, ...], Type]] = {
        "token_embd": ((VOCABULARY, of.hidden), Type.Q6_K)
    }
    for layer in range(of.layers):
        at = f"blk.{layer}"
        for name, outputs in {"attn_q": q, "attn_k": kv, "attn_v": kv}.items():
            made[f"{at}.{name}"] = ((outputs, of.hidden), Type.Q4_K)
        made[f"{at}.attn_output"] = ((of.hidden, q), Type.Q4_K)
        for name in ("ffn_gate_exps", "ffn_up_exps"):
            made[f"{at}.{name}"] = ((of.experts, of.ffn, of.hidden), Type.Q4_K)
        made[f"{at}.ffn_down_exps"] = ((of.experts, of.hidden, of.ffn), Type.Q4_K)
    made["output"] = ((VOCABULARY, of.hidden), Type.Q6_K)
    return made


def vectors(of: Shape) -> dict[str, tuple[int, ...]]:
    """Shapes of routers and norms, which are float32."""
    made: dict[str, tuple[int, ...]] = {"output_norm": (of.hidden,)}
    for layer in range(of.layers):
        for name in ("attn_norm", "ffn_norm"):
            made[f"blk.{layer}.{name}"] = (of.hidden,)
        for name in ("attn_q_norm", "attn_k_norm"):
            made[f"blk.{layer}.{name}"] = (HEAD_DIM,)
        made[f"blk.{layer}.ffn_gate_inp"] = (of.experts, of.hidden)
    return made


def stored_bytes(shape: tuple[int, ...], kind: Type) -> int:
    values, size = GGML_QUANT_SIZES[kind]
    return int(np.prod(shape)) // values * size


def step_bytes(of: Shape) -> int:
    """Bytes of weights that a decode step reads: of experts those that a token takes."""
    read = 0
    for name, (shape, kind) in tensors(of).items():
        share = of.top / of.experts if name.endswith("_exps") else float(name != "token_embd")
        read += round(share * stored_bytes(shape, kind))
    return read + sum(4 * int(np.prod(shape)) for shape in vectors(of).values())


def write(path: Path, of: Shape) -> None:
    """Writes the file, one tensor in memory at a time."""
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(of.hidden)
    writer.add_block_count(of.layers)
    writer.add_feed_forward_length(of.ffn)
    writer.add_expert_feed_forward_length(of.ffn)
    writer.add_expert_count(of.experts)
    writer.add_expert_used_count(of.top)
    writer.add_head_count(of.heads)
    writer.add_head_count_kv(of.kv_heads)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    add_vocabulary(writer, VOCABULARY)
    matrices = tensors(of)
    for name, (shape, kind) in matrices.items():
        values, size = GGML_QUANT_SIZES[kind]
        stored = (*shape[:-1], shape[-1] // values * size)
        total = stored_bytes(shape, kind)
        writer.add_tensor_info(f"{name}.weight", stored, np.dtype(np.uint8), total, kind)
    for name, shape in vectors(of).items():
        total = 4 * int(np.prod(shape))
        writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float32), total)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for shape, kind in matrices.values():
        writer.write_tensor_data(blocks((int(np.prod(shape[:-1])), shape[-1]), kind, rng))
    for shape in vectors(of).values():
        routes = len(shape) == 2
        filled = rng.standard_normal(shape) * 0.02 if routes else np.ones(shape)
        writer.write_tensor_data(filled.astype(np.float32))
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="small")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="interpreter that has it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.folder / "experts"
    folder.mkdir(parents=True)
    try:
        results = measure(folder, SHAPES[options.shape], options.threads)
        if options.llama_cpp:
            results |= beside_llama_cpp(folder, options.threads, options.llama_cpp)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(results, indent=2))
    if options.json:
        settings = {"shape": asdict(SHAPES[options.shape]), "threads": options.threads}
        peers = {}
        if options.llama_cpp:
            peers["llama.cpp"] = record.version_of(options.llama_cpp, PEERS["llama.cpp"])
        record.write(options.json, "experts", results, settings=settings, peers=peers)


def measure(folder: Path, of: Shape, threads: int) -> dict[str, Any]:
    """All numbers, in the units that their names say."""
    write(folder / SOURCE, of)
    results = build_made(folder)
    read = step_bytes(of)
    results["weights"] = sum(int(np.prod(shape)) for shape, _ in tensors(of).values())
    results["step_gb"] = round(read / 1e9, 4)
    return results | bench_made(folder, threads, read)


def beside_llama_cpp(folder: Path, threads: int, python: str) -> dict[str, Any]:
    """Speeds of both in turns, and how often as fast tamiz is."""
    ours = bench.bundle_child(folder / "built", threads)
    theirs = started("llama.cpp", folder / SOURCE, threads, python, folder)
    try:
        found = bench.measure([ours, theirs], (CONTEXT_LENGTH,), print)
    finally:
        ours.close()
        theirs.close()
    return {
        "tamiz": found[0].summary(),
        "llama.cpp": found[1].summary() | {"ratio": found[0].ratio(found[1])},
    }
