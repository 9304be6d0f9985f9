"""Decoding the continuation of a text, bundles in turn: time, inputs computed, quality gap.

    python benchmarks/continuation.py BASE BUNDLE … --text FILE [--context 1500] [--steps 240]
        [--threads 2] [--json FILE]

Every bundle reads the same first tokens of the text as a prompt and then one token a step. In a
round each decodes 16 tokens, so that all see the same moments of the machine; a ratio is the median
over rounds of tokens a second over those of BASE. `tamiz bench` does the same on random tokens,
where what moves from token to token is not what moves in a text. With one thread CPU time is
measured, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np

import tamiz_ops
from tamiz.runtime import Model
from tamiz.tokenizer import Tokenizer

ROUND = 16


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One result a bundle, BASE first."""
    paths = [arguments.base, *arguments.bundles]
    models = [Model.load(path, threads=arguments.threads) for path in paths]
    ids = Tokenizer(models[0].bundle).encode(arguments.text.read_text("utf-8"), bos=False)
    first, rounds = arguments.context, arguments.steps // ROUND
    sequences = [model.sequence(first + rounds * ROUND) for model in models]
    for sequence in sequences:
        sequence.read(ids[:first])
    clock = time.process_time if arguments.threads == 1 else time.perf_counter
    seconds = np.zeros((len(models), rounds))
    for turn in range(rounds):
        tokens = ids[first + turn * ROUND : first + (turn + 1) * ROUND]
        for number, sequence in enumerate(sequences):
            start = clock()
            for token in tokens:
                sequence.step(token)
            seconds[number, turn] = (clock() - start) / ROUND
    seconds = seconds[:, 1:]  # pages and caches are cold in the first round
    return [
        {
            "bundle": str(path),
            "ms": 1e3 * float(np.median(own)),
            "speed": float(np.median(seconds[0] / own)),
            **_counted(model),
        }
        for path, model, own in zip(paths, models, seconds, strict=True)
    ]


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
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results = measure(arguments)
    for result in results:
        print("  ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{v}"
                        for k, v in result.items() if v is not None))  # fmt: skip
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1), "utf-8")


if __name__ == "__main__":
    main()
