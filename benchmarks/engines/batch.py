"""Several sequences in one run (`tamiz.runtime.Batch`), against one sequence alone.

    python -m benchmarks batch BUNDLE [--part speed] [--part join] [--part bits] [--json FILE]

- ``speed``: tokens per second of steps of one sequence and of batches, after prompts of `--prompt`
  tokens. All take turns; a turn is `--steps` steps, and the median of the turns counts.
- ``join``: the time between the tokens of stepping sequences, with and without a prompt of
  `--joining` tokens that is read beside them, in blocks that take turns. Each call adds a result.
- ``bits``: greedy answers of sequences that come and go, against those of each alone.

Parts that ``--json`` has and that are not measured again stay in it.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.common import record
from tamiz.runtime.batching.batch import Batch
from tamiz.runtime.batching.member import Member
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.text.tokenizer import Tokenizer

TEXT = Path(__file__).parents[1] / "common" / "prompts.txt"
SIZES = (1, 2, 4, 8)
#: Runs in a row with a prompt that joins, and without.
BLOCK = 10
PARTS = ("speed", "join", "bits")


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), default=PARTS)
@click.option("--prompt", default=128, show_default=True, help="Tokens before the steps.")
@click.option("--steps", default=8, show_default=True, help="Steps of a turn.")
@click.option("--turns", default=5, show_default=True)
@click.option("--joining", default=2000, show_default=True, help="Tokens of the joining prompt.")
@click.option("--read", default=0, help="Tokens of it that are read before the others step.")
@click.option("--slowdown", default=1.45, show_default=True, help="As Batch takes it.")
@click.option("--seconds", default=1e9, help="Stop reading the joining prompt after this time.")
@click.option("--threads", default=2, show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    bundle: Path,
    parts: tuple[str, ...],
    prompt: int,
    steps: int,
    turns: int,
    joining: int,
    read: int,
    slowdown: float,
    seconds: float,
    threads: int,
    output: Path | None,
) -> None:
    """Measures BUNDLE."""
    model = Model.load(bundle, threads)
    ids = Tokenizer(model.bundle).encode(TEXT.read_text("utf-8"), bos=False)
    ids *= -(-max(joining, 2 * max(SIZES) * prompt) // len(ids))
    results = record.earlier(output)
    if "speed" in parts:
        results["speed"] = speed(model, ids, prompt, steps, turns)
    if "join" in parts:
        found = join(model, ids, prompt, joining, read, slowdown, seconds)
        results["join"] = [*results.get("join", []), found]
    if "bits" in parts:
        results["bits"] = bits(model, ids, prompt, steps * turns)
    click.echo(json.dumps(results, indent=1))
    if output is not None:
        settings = {
            "bundle": bundle, "prompt": prompt, "steps": steps, "turns": turns,
            "joining": joining, "slowdown": slowdown, "threads": threads,
        }  # fmt: skip
        record.write(output, "batch", results, settings=settings)


def speed(model: Model, ids: list[int], prompt: int, steps: int, turns: int) -> dict[str, Any]:
    """Tokens per second by number of sequences; `alone` is a sequence outside of a batch."""
    room = prompt + len(SIZES) * steps * (turns + 1) + 1
    batch = Batch(model, (room + 63) // 64 * 64 * max(SIZES))
    members = stepping(batch, ids, prompt, room, max(SIZES))
    alone = model.sequence(room)
    logits = alone.read(ids[:prompt])
    seconds: dict[str, list[float]] = {}
    for turn in range(turns + 1):  # the first one warms up
        start = time.perf_counter()
        for _ in range(steps):
            logits = alone.step(int(logits.argmax()))
        times = {"alone": (time.perf_counter() - start) / steps}
        for size in SIZES:
            start = time.perf_counter()
            for _ in range(steps):
                step(batch, members[:size])
            times[str(size)] = (time.perf_counter() - start) / steps / size
        for name, value in times.items() if turn else ():
            seconds.setdefault(name, []).append(value)
    return {
        name: {
            "tok_s": round(float(1 / np.median(values)), 2),
            "times_alone": round(
                float(np.median(np.array(seconds["alone"]) / np.array(values))), 3
            ),
        }
        for name, values in seconds.items()
    }


def join(
    model: Model, ids: list[int], prompt: int, joining: int, read: int, slowdown: float, most: float
) -> dict[str, Any]:
    """Milliseconds between tokens of the largest batch: blocks of runs with and without reading."""
    count = max(SIZES)
    room = min(model.limit, prompt + 4 * joining + 4 * BLOCK)
    batch = Batch(model, (room + 63) // 64 * 64 * count + joining + 128, slowdown)
    new = batch.add(ids[:joining], joining + 1)
    waiting, new.unread = new.unread[read:], new.unread[:read]
    members = stepping(batch, ids, prompt, room, count)
    times: dict[str, list[float]] = {"without": [], "reading": []}
    start = time.perf_counter()
    for _ in range(BLOCK):
        step(batch, members)
    while waiting and time.perf_counter() - start < most:
        times["without"] += [step(batch, members) for _ in range(BLOCK)]
        new.unread, waiting = waiting, []
        times["reading"] += [step(batch, members) for _ in range(BLOCK) if new.unread]
        waiting, new.unread = new.unread, []
    result: dict[str, Any] = {
        "from": read,
        "tokens_read": len(new.tokens) - read,
        "seconds_reading": round(sum(times["reading"]), 2),
    }
    for name, values in times.items():
        for percent in (50, 95):
            value = 1e3 * float(np.percentile(values, percent))
            result[f"{name}_p{percent}_ms"] = round(value, 1)
    for percent in (50, 95):
        ratio = result[f"reading_p{percent}_ms"] / result[f"without_p{percent}_ms"]
        result[f"p{percent}_ratio"] = round(ratio, 3)
    return result


def bits(model: Model, ids: list[int], prompt: int, tokens: int) -> dict[str, Any]:
    """How many answers are those of the sequence alone, where only half of them fit at once."""
    count = max(SIZES)
    lengths = [prompt * (n + 1) // count for n in range(count)]
    prompts = [ids[n * prompt : n * prompt + length] for n, length in enumerate(lengths)]
    batch = Batch(model, count // 2 * (prompt + tokens))
    answers: list[list[int]] = [[] for _ in prompts]
    for number, token in batch.generate(prompts, Sampling(), tokens):
        answers[number].append(token)
    alone = [list(model.generate(p, Sampling(), tokens)) for p in prompts]
    equal = sum(a == b for a, b in zip(answers, alone, strict=True))
    return {"answers": count, "equal": equal, "tokens": sum(map(len, answers))}


def stepping(batch: Batch, ids: list[int], prompt: int, room: int, count: int) -> list[Member]:
    """Sequences that have read a prompt each."""
    members = [batch.add(ids[n * prompt : (n + 1) * prompt], room) for n in range(count)]
    while any(member.unread for member in members):
        batch.run()
    return members


def step(batch: Batch, members: list[Member]) -> float:
    """Seconds of a run that gives each of `members` a token."""
    start = time.perf_counter()
    for member in members:
        # Logits are gone where the member did not step in the last run.
        token = member.tokens[-1] if member.logits is None else int(member.logits.argmax())
        member.append(token)
    batch.run()
    return time.perf_counter() - start
