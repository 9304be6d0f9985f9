"""Decoding the continuation of a text, bundles in turn: time, what is computed, gap and divergence.

    python -m benchmarks continuation BASE BUNDLE … --text FILE [--context 1500] [--steps 240]
        [--texts 1] [--threads 2] [--json FILE]

Every bundle reads the same first tokens of the text as a prompt and then one token a step; the next
text is what follows in the file. In a round each decodes 24 tokens, so that all see the same
moments of the machine, and the last 16 are timed: the others' turns have emptied the caches. A
ratio is the median over rounds of tokens a second over those of BASE.
`kl` and `dppl` compare the steps' logits with those of BASE. `tamiz bench` does the same on random
tokens, where what moves from token to token is not what moves in a text. With one thread CPU time
is measured, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import tamiz_ops
from benchmarks.common import record
from tamiz.runtime.logprobs import log_softmax
from tamiz.runtime.model import Model
from tamiz.runtime.text.tokenizer import Tokenizer

ROUND, WARM = 24, 8

Float64 = NDArray[np.float64]


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One result a bundle, BASE first."""
    paths = [arguments.base, *arguments.bundles]
    models = [Model.load(path, threads=arguments.threads) for path in paths]
    ids = Tokenizer(models[0].bundle).encode(arguments.text.read_text("utf-8"), bos=False)
    size = arguments.context + arguments.steps // ROUND * ROUND
    rounds = [
        found
        for text in range(arguments.texts)
        for found in _rounds(models, ids[text * size : (text + 1) * size], arguments)
    ]
    seconds, divergence, nll = (np.array(values) for values in zip(*rounds, strict=True))
    return [
        {
            "bundle": str(path),
            "ms": 1e3 * float(np.median(seconds[:, number])),
            "speed": float(np.median(seconds[:, 0] / seconds[:, number])),
            "kl": float(divergence[:, number].mean()),
            "dppl": float(np.expm1((nll[:, number] - nll[:, 0]).mean())),
            **_counted(model),
        }
        for number, (path, model) in enumerate(zip(paths, models, strict=True))
    ]


def _rounds(
    models: list[Model], ids: list[int], arguments: argparse.Namespace
) -> Iterator[tuple[Float64, Float64, Float64]]:
    """Seconds a step, KL to BASE and nll of each bundle, a round each."""
    first = arguments.context
    sequences = [model.sequence(len(ids)) for model in models]
    for sequence in sequences:
        sequence.read(ids[:first])
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    for start in range(first, len(ids), ROUND):
        tokens = ids[start : start + ROUND]
        seconds, scores = [], []
        for sequence in sequences:
            logits = [sequence.step(token).copy() for token in tokens[:WARM]]
            began = clock()
            logits += [sequence.step(token).copy() for token in tokens[WARM:]]
            seconds.append((clock() - began) / (ROUND - WARM))
            scores.append(log_softmax(np.array(logits)))
        base = scores[0]
        divergence = [(np.exp(base) * (base - own)).sum(axis=1).mean() for own in scores]
        # What follows the last step of a round is known in the next one.
        nll = [-own[np.arange(ROUND - 1), tokens[1:]].mean() for own in scores]
        if start > first:  # pages and caches are cold in the first round
            yield np.array(seconds), np.array(divergence), np.array(nll)


def _counted(model: Model) -> dict[str, float | None]:
    """Of event-driven's sites: inputs computed, mean gap, sites that a gap switched off."""

    def total(name: str) -> float:
        return sum(node.get(name, 0.0) for node in tamiz_ops.metrics(model.session).values())

    def ratio(part: str, whole: str) -> float | None:
        return total(part) / total(whole) if total(whole) else None

    return {
        "kept": ratio("event.topk_kept", "event.channels"),
        "quality_gap": ratio("event.quality_gap", "event.gap_checks"),
        "disabled": total("event.disabled"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path)
    parser.add_argument("bundles", type=Path, nargs="+")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--context", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--texts", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = measure(arguments)
    for result in results:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}"
                        for k, v in result.items() if v is not None))  # fmt: skip
    if arguments.json:
        record.write(arguments.json, "continuation", results, settings=vars(arguments))
