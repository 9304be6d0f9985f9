"""llama.cpp with and without its prompt look-up: ``speculation_child.py GGUF THREADS``.

Runs under the interpreter that has llama-cpp-python; answers the requests of
`benchmarks/engines/speculation.py`, one JSON object a line.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

CONTEXT = 4096


def serve() -> None:
    """Loads the model, then answers requests until end of input."""
    from llama_cpp import Llama
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print to stdout as they please
    start = time.perf_counter()
    threads = int(sys.argv[2])
    # logits_all: the look-up needs the logits of all tokens of a run.
    model = Llama(
        sys.argv[1],
        n_ctx=CONTEXT,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=True,
        verbose=False,
    )

    def reply(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")
        answers.flush()

    reply(load_s=time.perf_counter() - start, limit=CONTEXT)
    for line in sys.stdin:
        request = json.loads(line)
        found, rates = {}, {}
        for mode in ("off", "lookup"):
            # Its documentation: 10 for a GPU, 2 for machines with a CPU only.
            model.draft_model = (
                LlamaPromptLookupDecoding(num_pred_tokens=2) if mode != "off" else None
            )
            model.reset()
            found[mode], rates[mode] = answer(model, request["ids"], request["tokens"])
        reply(
            off_tok_s=rates["off"],
            lookup_tok_s=rates["lookup"],
            tokens=len(found["off"]),
            equal=found["off"] == found["lookup"],
        )


def answer(model: Any, ids: list[int], tokens: int) -> tuple[list[int], float]:
    """Greedy tokens, and how many come per second after the first."""
    found: list[int] = []
    first = last = time.perf_counter()
    for token in model.generate(ids, temp=0.0, repeat_penalty=1.0):
        if token == model.token_eos() or len(found) == tokens:
            break
        last = time.perf_counter()
        if not found:
            first = last
        found.append(token)
    return found, round((len(found) - 1) / max(last - first, 1e-9), 2)


if __name__ == "__main__":
    serve()
