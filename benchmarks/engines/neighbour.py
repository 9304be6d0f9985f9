"""Encoders beside a program that spins on one core: how much longer a text takes.

    tamiz export all-mpnet-base-v2 -o mpnet
    tamiz build mpnet -o mpnet-q8 --activation-bits=8
    python -m benchmarks neighbour mpnet mpnet-q8 --json neighbour.json

Another process computes without end on the last core; it is stopped and continued between rounds.
In each round every model runs one text of --length tokens, some times without the neighbour and as
often beside it. ``slowdown`` is the ratio of the medians, ``slowdown_range`` the quartiles of the
ratios of the rounds. A share of 1 core of N that is lost explains a slowdown of N / (N - 0.5) where
the system shares that core fairly; what is above that is waiting.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.common import record
from benchmarks.quality.encoders import encoder
from tamiz.runtime.embedding.encoder import Encoder

#: Runs of a model with and without the neighbour in each round, and seconds until a thread pool
#: that has run before has stopped spinning.
_RUNS, _PAUSE = 5, 0.05
_SPIN = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"


@click.command()
@click.argument(
    "bundles",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.option("--length", default=128, show_default=True, help="Tokens of the text.")
@click.option("--rounds", default=20, show_default=True)
@click.option("--threads", default=len(os.sched_getaffinity(0)), show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    bundles: tuple[Path, ...], length: int, rounds: int, threads: int, output: Path | None
) -> None:
    """Measures BUNDLES of encoders."""
    models = {bundle.name: encoder(bundle, threads) for bundle in bundles}
    ids = np.random.default_rng(0).integers(1000, 2000, (1, length))
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in models}
    with spinning() as neighbour:
        for _ in range(rounds):
            for name, model in models.items():
                time.sleep(_PAUSE)
                alone = seconds(model, ids)
                neighbour.send_signal(signal.SIGCONT)
                time.sleep(_PAUSE)
                beside = seconds(model, ids)
                neighbour.send_signal(signal.SIGSTOP)
                spent[name].append((alone, beside))
    found: dict[str, dict[str, Any]] = {}
    for name, pairs in spent.items():
        alone, beside = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratios = statistics.quantiles([b / a for a, b in pairs], n=4)
        found[name] = {
            "alone_ms": round(1e3 * alone, 2),
            "beside_ms": round(1e3 * beside, 2),
            "slowdown": round(beside / alone, 3),
            "slowdown_range": [round(ratios[0], 3), round(ratios[2], 3)],
        }
        click.echo(f"{name:24} {found[name]}")
    if output is not None:
        settings = {"length": length, "rounds": rounds, "threads": threads}
        record.write(output, "neighbour", found, settings={"model": bundles[0].name, **settings})


def seconds(model: Encoder, ids: np.ndarray) -> float:
    """The median of some runs, after one that brings the weights back to the caches."""
    model.embeddings(ids)
    spent = []
    for _ in range(_RUNS):
        begin = time.perf_counter()
        model.embeddings(ids)
        spent.append(time.perf_counter() - begin)
    return statistics.median(spent)


@contextmanager
def spinning() -> Iterator[subprocess.Popen[bytes]]:
    """A process that spins on the last core, stopped at first; it ends with the context."""
    core = max(os.sched_getaffinity(0))
    process = subprocess.Popen([sys.executable, "-c", _SPIN, str(core)])
    try:
        process.send_signal(signal.SIGSTOP)
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
