"""A model of 7B shape, made of random blocks: seconds and memory of export and build, decode speed.

    python -m benchmarks large-model /big/folder [--layers 32] [--threads 2] [--json FILE]

The GGUF has the shapes and formats of a Llama-2-7B in Q4_K_M: Q4_K, and Q6_K for the values, half
of the second matrices of feed-forward blocks and the head. It is written tensor by tensor,
exported, built and measured; what was written is removed in the end. It needs 8.5 GB of disk. A
decode step reads all weights but the embedding once; ``predicted_tok_s`` is what the read probe
says that takes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as Type

from benchmarks.common import record

HIDDEN, FFN, HEADS, VOCABULARY, CONTEXT = 4096, 11008, 32, 32000, 4096
#: Bytes of the fp16 factors in a block, and the factors: weights of about 0.02.
FACTORS = {Type.Q4_K: {0: 1e-4, 2: 7.5e-4}, Type.Q6_K: {208: 1e-5}}


def tensors(layers: int) -> dict[str, tuple[tuple[int, int], Type]]:
    """Shape [outputs, inputs] and type of every matrix."""
    made = {"token_embd": ((VOCABULARY, HIDDEN), Type.Q4_K)}
    for layer in range(layers):
        more_bits = layer < layers // 8 or layer >= 7 * layers // 8 or layer % 3 == 2
        of = {"attn_q": HIDDEN, "attn_k": HIDDEN, "attn_v": HIDDEN, "attn_output": HIDDEN}
        for name, outputs in {**of, "ffn_gate": FFN, "ffn_up": FFN}.items():
            kind = Type.Q6_K if name == "attn_v" and more_bits else Type.Q4_K
            made[f"blk.{layer}.{name}"] = ((outputs, HIDDEN), kind)
        made[f"blk.{layer}.ffn_down"] = ((HIDDEN, FFN), Type.Q6_K if more_bits else Type.Q4_K)
    made["output"] = ((VOCABULARY, HIDDEN), Type.Q6_K)
    return made


def blocks(shape: tuple[int, int], kind: Type, rng: np.random.Generator) -> np.ndarray:
    """Random blocks with factors that keep the weights small."""
    values, size = GGML_QUANT_SIZES[kind]
    data = np.frombuffer(rng.bytes(shape[0] * shape[1] // values * size), np.uint8).copy()
    table = data.reshape(-1, size)
    for at, factor in FACTORS[kind].items():
        table[:, at : at + 2] = np.frombuffer(np.float16(factor).tobytes(), np.uint8)
    return table.reshape(shape[0], -1)


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """A SentencePiece vocabulary of bytes and numbers."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += [f"▁{number}" for number in range(size - len(pieces))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(number) for number in range(size)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (size - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def write(path: Path, layers: int) -> None:
    """Writes the file, one tensor in memory at a time."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    add_vocabulary(writer, VOCABULARY)
    matrices = tensors(layers)
    norms = [f"blk.{i}.{name}" for i in range(layers) for name in ("attn_norm", "ffn_norm")]
    for name, (shape, kind) in matrices.items():
        values, size = GGML_QUANT_SIZES[kind]
        row = shape[1] // values * size
        writer.add_tensor_info(
            f"{name}.weight", (shape[0], row), np.dtype(np.uint8), shape[0] * row, kind
        )
    for name in [*norms, "output_norm"]:
        writer.add_tensor_info(f"{name}.weight", (HIDDEN,), np.dtype(np.float32), 4 * HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for shape, kind in matrices.values():
        writer.write_tensor_data(blocks(shape, kind, rng))
    for _ in [*norms, "output_norm"]:
        writer.write_tensor_data(np.ones(HIDDEN, np.float32))
    writer.close()


def run(*arguments: str | Path) -> dict[str, Any]:
    """Seconds and largest resident set, in GB, of one command of tamiz; and what it prints."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "tamiz", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    seconds = round(time.perf_counter() - start, 1)
    return {"seconds": seconds, "peak_gb": round(usage.ru_maxrss / 1e6, 2), "printed": printed}


#: Name of the file that is made.
SOURCE = "made.gguf"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    folder = options.folder / "large_model"
    folder.mkdir(parents=True)
    try:
        results = measure(folder, options.layers, options.threads)
    finally:
        shutil.rmtree(folder)
    print(json.dumps(results, indent=2))
    if options.json:
        settings = {"layers": options.layers, "threads": options.threads}
        record.write(options.json, "large_model", results, settings=settings)


def measure(folder: Path, layers: int, threads: int) -> dict[str, Any]:
    """All numbers, in the units that their names say."""
    write(folder / SOURCE, layers)
    results = build_made(folder)
    blocks_on_disk = {(s.st_ino, s.st_blocks) for s in (p.stat() for p in folder.glob("*/*"))}
    results["bundles_on_disk_gb"] = round(sum(512 * n for _, n in blocks_on_disk) / 1e9, 3)
    table = {name: GGML_QUANT_SIZES[kind] for name, (_, kind) in tensors(layers).items()}
    read = sum(
        shape[0] * shape[1] // table[name][0] * table[name][1]
        for name, (shape, _) in tensors(layers).items()
        if name != "token_embd"
    )
    results["step_gb"] = round(read / 1e9, 3)
    return results | bench_made(folder, threads, read)


def build_made(folder: Path) -> dict[str, Any]:
    """Exports and builds the file `SOURCE` of a folder: its size, and what both took."""
    source, dense, built = folder / SOURCE, folder / "dense", folder / "built"
    results: dict[str, Any] = {"gguf_gb": round(source.stat().st_size / 1e9, 3)}
    for name, found in (
        ("export", run("export", source, "-o", dense)),
        ("build", run("build", dense, "-o", built)),
    ):
        results[name] = {key: found[key] for key in ("seconds", "peak_gb")}
    return results


def bench_made(folder: Path, threads: int, step_bytes: int) -> dict[str, Any]:
    """Speed of what `build_made` built, and what the bytes of a decode step predict."""
    found = run("bench", folder / "built", "--threads", str(threads), "--context", "128", "--json")
    speed = json.loads(found["printed"])
    return {
        "bench": speed,
        "predicted_tok_s": round(speed["read_gb_s"] * 1e9 / step_bytes, 3),
    }
