"""Perplexity of a bundle and of llama.cpp on the same tokens of a text.

    python -m benchmarks perplexity bundle model.gguf --text wikitext2-test.txt \
        --python other-venv/bin/python --float32 model-f32.gguf --json perplexity.json

llama.cpp rounds the inputs of products with quantised weights to 8 bits. ``--float32`` writes the
GGUF once more with its weights dequantised, which llama.cpp multiplies without that rounding: what
it computes there is the reference that both are compared with.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np


def child(model: str, threads: int) -> None:
    """Reads windows as JSON, writes the sums of −log p of their tokens; has llama-cpp-python."""
    import llama_cpp.llama_cpp as api

    windows: list[list[int]] = json.load(sys.stdin)
    api.llama_backend_init()
    loaded = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
    params = api.llama_context_default_params()
    longest = max(map(len, windows))
    params.n_ctx, params.n_batch, params.n_ubatch = longest, longest, 512
    params.n_threads = params.n_threads_batch = threads
    params.type_k = params.type_v = 0  # keys and values in float32
    params.flash_attn_type = 0  # which would need fp16
    context = api.llama_init_from_model(loaded, params)
    losses = []
    for window in windows:
        api.llama_memory_clear(api.llama_get_memory(context), True)
        batch = api.llama_batch_init(len(window), 0, 1)
        for i, token in enumerate(window):
            batch.token[i], batch.pos[i], batch.logits[i] = token, i, 1
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        batch.n_tokens = len(window)
        if api.llama_decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        nll = 0.0
        for i, token in enumerate(window[1:]):
            logits = api.llama_get_logits_ith(context, i)
            nll += loss(np.ctypeslib.as_array(logits, (vocabulary,)), token)
        api.llama_batch_free(batch)
        losses.append(nll)
    json.dump(losses, sys.stdout)


def loss(logits: np.ndarray, token: int) -> float:
    """−log softmax(logits)[token], in float64."""
    x = logits.astype(np.float64)
    top = x.max()
    return float(top + math.log(np.exp(x - top).sum()) - x[token])


def ask(command: list[str], question: Any) -> Any:
    """What a program answers to JSON on its standard input, as JSON.

    llama.cpp's threads sleep while they wait, so that other work on the machine costs little.
    """
    environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
    given = json.dumps(question)
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode != 0:
        raise SystemExit(done.stderr[-2000:])
    return json.loads(done.stdout)


def write_float32(source: Path, target: Path) -> None:
    """Writes a GGUF with all weights dequantised and all other fields as they are."""
    import gguf

    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, of)
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(weight, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    import click

    @click.command()
    @click.argument("bundle", type=click.Path(exists=True, path_type=Path))
    @click.argument("gguf", type=click.Path(exists=True, path_type=Path))
    @click.option("--text", type=click.Path(exists=True, path_type=Path), required=True)
    @click.option("--python", default=sys.executable, help="Interpreter with llama-cpp-python.")
    @click.option("--float32", type=click.Path(path_type=Path), help="Dequantised GGUF to write.")
    @click.option("--windows", default=8, show_default=True)
    @click.option("--threads", default=2, show_default=True)
    @click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
    def command(
        bundle: Path,
        gguf: Path,
        text: Path,
        python: str,
        float32: Path | None,
        windows: int,
        threads: int,
        output: Path | None,
    ) -> None:
        """Scores windows of 1,024 tokens of TEXT, each after its beginning."""
        from tamiz.evaluation.windows import read_windows
        from tamiz.runtime.model import Model

        model = Model.load(bundle, threads)
        tokens = read_windows(text, model.bundle, windows)
        losses = {"tamiz": [bundle_loss(model, window) for window in tokens]}
        del model
        files = {"llama.cpp": gguf}
        if float32 is not None:
            if not float32.exists():
                write_float32(gguf, float32)
            files["llama.cpp, float32"] = float32
        for name, path in files.items():
            losses[name] = ask([python, __file__, str(path), str(threads)], tokens)
        report = summary(losses, len(tokens[0]) - 1)
        print(json.dumps(report, indent=2))
        if output is not None:
            from benchmarks.common import record  # llama.cpp's interpreter may lack what it imports

            settings = {"model": gguf, "text": text, "windows": windows, "threads": threads}
            peers = {"llama-cpp-python": record.version_of(python, "llama-cpp-python")}
            record.write(output, "perplexity", report, settings=settings, peers=peers)

    command()


def bundle_loss(model: Any, window: list[int]) -> float:
    """Sum of −log p of the tokens of a window but the first."""
    logits = model.logits(np.array([window]))[0]
    return sum(loss(logits[i], token) for i, token in enumerate(window[1:]))


def summary(losses: dict[str, list[float]], scored: int) -> dict[str, Any]:
    """Perplexities, and what tamiz' differs by, in all windows and in each."""
    ppl = {name: math.exp(sum(nll) / (len(nll) * scored)) for name, nll in losses.items()}
    ours = losses["tamiz"]
    difference = {
        name: {
            "relative": ppl["tamiz"] / ppl[name] - 1,
            "by_window": [
                math.exp((mine - theirs) / scored) - 1
                for mine, theirs in zip(ours, nll, strict=True)
            ],
        }
        for name, nll in losses.items()
        if name != "tamiz"
    }
    return {"ppl": ppl, "tamiz_against": difference, "windows": len(ours)}


if __name__ == "__main__":  # under the interpreter that has llama-cpp-python
    child(sys.argv[1], int(sys.argv[2]))
