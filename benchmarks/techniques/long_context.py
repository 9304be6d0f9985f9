"""Quality of a bundle at long contexts, where it attends to some of the keys only.

    python -m benchmarks long-context BUNDLE --against EXACT [--text FILE] [--windows 8]

A filter acts in decode steps, so every scored token is a step:

- ``ppl``: of the last 512 tokens of windows of 2,048; those before are read as a prompt, these step
  by step. `dppl` compares with the other bundle on the same windows, `_256` is of the last 256.
- ``needle``: a fact stands at ten depths of a text of 4,000 and of 8,000 tokens, followed by a
  question; a greedy answer that holds the fact's number finds it.

Speed at these contexts is `tamiz bench BUNDLE --against EXACT`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tamiz.runtime.model import Model
from tamiz.runtime.text.tokenizer import Tokenizer

SCORED = 512
DEPTHS = 10
FACT = " The secret number of the lighthouse in {place} is {number}. Remember it."
QUESTION = "\n\nThe secret number of the lighthouse in {place} is"
PLACES = (
    *("Bergen", "Lisbon", "Odessa", "Tunis", "Havana"),
    *("Quito", "Nagoya", "Perth", "Dakar", "Riga"),
)


def losses(model: Model, window: list[int]) -> Iterator[float]:
    """nll of each of the last tokens of a window, after steps of one token."""
    start = len(window) - SCORED
    sequence = model.sequence(len(window))
    logits = sequence.read(window[:start])
    for token in window[start:]:
        row = logits.astype(np.float64)
        row -= row.max()
        yield float(np.log(np.exp(row).sum()) - row[token])
        logits = sequence.step(token)


def perplexity(model: Model, windows: list[list[int]]) -> dict[str, float]:
    nll = np.array([list(losses(model, window)) for window in windows])
    return {"": float(np.exp(nll.mean())), "_256": float(np.exp(nll[:, -256:].mean()))}


def needle(model: Model, tokenizer: Tokenizer, hay: list[int], length: int) -> list[bool]:
    """Whether the fact is found, by depth."""
    found = []
    sequence = model.sequence(length + 16)
    same = 0
    for depth, place in enumerate(PLACES):
        number = str(1000 + 7919 * (depth + 1) % 9000)
        fact = tokenizer.encode(FACT.format(place=place, number=number), bos=False)
        question = tokenizer.encode(QUESTION.format(place=place), bos=False)
        room = length - len(fact) - len(question)
        at = room * depth // DEPTHS
        sequence.truncate(same)
        kept = len(sequence.tokens)  # none where the bundle has state that knows no way back
        sequence.read([*hay[kept:at], *fact, *hay[at:room]])
        same = at
        # The question is read in steps, too, so that the filter sees it.
        for token in question:
            logits = sequence.step(token)
        answer = []
        for _ in range(10):
            answer.append(int(logits.argmax()))
            logits = sequence.step(answer[-1])
        found.append(number in tokenizer.decode(answer))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--against", type=Path)
    data = os.environ.get("TAMIZ_DATA", Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--text", type=Path, default=Path(data) / "wikitext2-test.txt")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--window", type=int, default=2048, help="Tokens of a window.")
    parser.add_argument("--lengths", type=int, nargs="*", default=[4000, 8000])
    arguments = parser.parse_args()
    models = [Model.load(path) for path in (arguments.bundle, arguments.against) if path]
    tokenizer = Tokenizer(models[0].bundle)
    ids = tokenizer.encode(arguments.text.read_text("utf-8"), bos=False)
    size = arguments.window
    windows = [ids[n * size : (n + 1) * size] for n in range(arguments.windows)]
    report: dict[str, Any] = {}
    if windows:
        ppl = [perplexity(model, windows) for model in models]
        for tail in ppl[0]:
            values = [found[tail] for found in ppl]
            report["ppl" + tail] = dict(zip(("bundle", "against"), values, strict=False))
            report["dppl" + tail] = values[0] / values[-1] - 1
    for length in arguments.lengths:
        results = [needle(model, tokenizer, ids, length) for model in models]
        report[f"needle_{length}"] = dict(zip(("bundle", "against"), results, strict=False))
    json.dump(report, sys.stdout, indent=1)
    print()
