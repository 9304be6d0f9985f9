"""Greedy answers of a bundle and of llama.cpp to the same prompts, token by token.

    python benchmarks/greedy.py bundle model.gguf --python other-venv/bin/python \
        --float32 model-f32.gguf --json greedy.json

Where the answers part, the margin says how far: the bundle's logit of its own token minus its logit
of the other one. llama.cpp rounds the inputs of products with quantised weights to 8 bits;
``--float32`` (see benchmarks/perplexity.py) compares with products that are not rounded as well.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

CHILD = "--child"
HERE = Path(__file__).resolve().parent


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


def encode(bundle: Any, lines: list[str]) -> list[list[int]]:
    """Token ids of prompts, in the bundle's chat template if it has one."""
    from tamiz.runtime.chat import ChatTemplate, encode_chat
    from tamiz.runtime.tokenizer import Tokenizer

    tokenizer = Tokenizer(bundle)
    if "chat_template" not in tokenizer.settings:
        return [tokenizer.encode(line) for line in lines]
    template = ChatTemplate(tokenizer.settings)
    return [encode_chat(tokenizer, template, [{"role": "user", "content": line}]) for line in lines]


def until_stop(answer: list[int], stops: Iterable[int]) -> list[int]:
    """An answer up to and with its first stop token; what follows is no answer."""
    ends = [place for place, token in enumerate(answer) if token in set(stops)]
    return answer[: ends[0] + 1] if ends else answer


def divergence(model: Any, prompt: list[int], answer: list[int]) -> tuple[int, float] | None:
    """Where the bundle, which reads `answer`, first prefers another token, and by how much.

    Returns:
        The number of equal tokens and the margin in logits; None if all are equal.
    """
    sequence = model.sequence(len(prompt) + len(answer))
    logits = sequence.read(prompt)
    for place, token in enumerate(answer):
        if (best := int(logits.argmax())) != token:
            return place, float(logits[best] - logits[token])
        if place + 1 < len(answer):
            logits = sequence.step(token)
    return None


def summary(parted: list[tuple[int, float] | None]) -> dict[str, Any]:
    """Equal answers, and where the others part."""
    margins = [found[1] for found in parted if found]
    return {
        "prompts": len(parted),
        "equal": sum(found is None for found in parted),
        "median_margin": statistics.median(margins) if margins else None,
        "largest_margin": max(margins, default=None),
        "divergences": [
            {"prompt": index, "equal_tokens": found[0], "margin": round(found[1], 4)}
            for index, found in enumerate(parted)
            if found
        ],
    }


def main() -> None:
    import click

    @click.command()
    @click.argument("bundle", type=click.Path(exists=True, path_type=Path))
    @click.argument("gguf", type=click.Path(exists=True, path_type=Path))
    @click.option("--prompts", type=click.Path(exists=True, path_type=Path),
                  default=HERE / "prompts.txt", help="One prompt a line.")  # fmt: skip
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
        import perplexity
        import record

        from tamiz.runtime.model import Model

        model = Model.load(bundle, threads)
        ids = encode(model.bundle, prompts.read_text("utf-8").splitlines()[:count])
        files = {"llama.cpp": gguf}
        if float32 is not None:
            if not float32.exists():
                perplexity.write_float32(gguf, float32)
            files["llama.cpp, float32"] = float32
        report = {}
        for name, path in files.items():
            run = [python, __file__, CHILD, str(path), str(threads), str(tokens)]
            done = subprocess.run(
                run, input=json.dumps(ids), capture_output=True, text=True, check=False
            )
            if done.returncode != 0:
                raise SystemExit(done.stderr[-2000:])
            answers = [until_stop(ids, model.stop_ids) for ids in json.loads(done.stdout)]
            parted = [divergence(model, *each) for each in zip(ids, answers, strict=True)]
            report[name] = summary(parted)
        print(json.dumps(report, indent=1))
        if output is not None:
            settings = {"model": gguf, "tokens": tokens, "threads": threads}
            peers = {"llama-cpp-python": record.version_of(python, "llama-cpp-python")}
            record.write(output, "greedy", report, settings=settings, peers=peers)

    command()


if __name__ == "__main__":
    if CHILD in sys.argv[1:2]:
        child(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()
