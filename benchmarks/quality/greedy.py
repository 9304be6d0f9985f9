"""Greedy answers of a bundle and of llama.cpp to the same prompts, token by token.

    python -m benchmarks greedy bundle model.gguf --python other-venv/bin/python \
        --float32 model-f32.gguf --json greedy.json

Where the answers part, the margin says how far: the bundle's logit of its own token minus its logit
of the other one. llama.cpp rounds the inputs of products with quantised weights to 8 bits;
``--float32`` (see perplexity.py) compares with products that are not rounded as well.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

PROMPTS = Path(__file__).parents[1] / "common" / "prompts.txt"


def child(model: str, threads: int, tokens: int) -> None:
    """Reads prompts as token ids, writes what follows each; has llama-cpp-python."""
    import llama_cpp.llama_cpp as api

    prompts: list[list[int]] = json.load(sys.stdin)
    api.llama_backend_init()
    loaded = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
    params = api.llama_context_default_params()
    params.n_ctx = max(map(len, prompts)) + tokens
    params.n_batch = params.n_ubatch = params.n_ctx
    params.n_threads = params.n_threads_batch = threads
    params.type_k = params.type_v = 0  # keys and values in float32
    params.flash_attn_type = 0  # which would need fp16
    context = api.llama_init_from_model(loaded, params)
    answers = []
    for prompt in prompts:
        api.llama_memory_clear(api.llama_get_memory(context), True)
        answer, given = [], prompt
        for _ in range(tokens):
            tokens_given = (api.llama_token * len(given))(*given)  # the batch only points to it
            batch = api.llama_batch_get_one(tokens_given, len(given))
            if api.llama_decode(context, batch) != 0:
                raise SystemExit("llama_decode failed")
            logits = api.llama_get_logits_ith(context, -1)
            given = [int(np.ctypeslib.as_array(logits, (vocabulary,)).argmax())]
            answer += given
        answers.append(answer)
    json.dump(answers, sys.stdout)


def main() -> None:
    import click

    @click.command()
    @click.argument("bundle", type=click.Path(exists=True, path_type=Path))
    @click.argument("gguf", type=click.Path(exists=True, path_type=Path))
    @click.option("--prompts", type=click.Path(exists=True, path_type=Path),
                  default=PROMPTS, help="One prompt a line.")  # fmt: skip
    @click.option("--count", default=20, show_default=True, help="Prompts to answer.")
    @click.option("--tokens", default=64, show_default=True, help="Tokens of each answer.")
    @click.option("--python", default=sys.executable, help="Interpreter with llama-cpp-python.")
    @click.option("--float32", type=click.Path(path_type=Path), help="Dequantised GGUF to write.")
    @click.option("--threads", default=2, show_default=True)
    @click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
    def command(
        bundle: Path,
        gguf: Path,
        prompts: Path,
        count: int,
        tokens: int,
        python: str,
        float32: Path | None,
        threads: int,
        output: Path | None,
    ) -> None:
        """Compares the answers of BUNDLE with those of llama.cpp on GGUF."""
        from benchmarks.common import record
        from benchmarks.quality import perplexity
        from tamiz.evaluation import greedy
        from tamiz.runtime.model import Model

        model = Model.load(bundle, threads)
        ids = greedy.encode_prompts(model.bundle, greedy.read_prompts(prompts, count))
        files = {"llama.cpp": gguf}
        if float32 is not None:
            if not float32.exists():
                perplexity.write_float32(gguf, float32)
            files["llama.cpp, float32"] = float32
        report = {}
        for name, path in files.items():
            command = [python, __file__, str(path), str(threads), str(tokens)]
            told = perplexity.ask(command, ids)
            answers = [greedy.until_stop(answer, model.stop_ids) for answer in told]
            parted = [greedy.divergence(model, *each) for each in zip(ids, answers, strict=True)]
            report[name] = greedy.summary(parted)
        print(json.dumps(report, indent=1))
        if output is not None:
            settings = {"model": gguf, "tokens": tokens, "threads": threads}
            peers = {"llama-cpp-python": record.version_of(python, "llama-cpp-python")}
            record.write(output, "greedy", report, settings=settings, peers=peers)

    command()


if __name__ == "__main__":  # under the interpreter that has llama-cpp-python
    child(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
