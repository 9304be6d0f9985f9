"""Decode with and without exact speculation: edits of code, answers that quote, prose.

    python -m benchmarks speculation qwen15 --gguf qwen15.gguf \
        --python llama.cpp=other-venv/bin/python --json speculation.json

The cases lie in ``speculation_cases/KIND/NAME.txt``: a request, and after a line ``---`` the text
that it is about. Each case is answered with ``--speculate=off`` and ``ngram`` in turn, after one
reading of the prompt; the tokens must be the same, greedy and with a seed. Speeds count tokens
after the first. With ``--gguf`` llama.cpp answers the same token ids with and without its own
prompt look-up (`LlamaPromptLookupDecoding`).

``--mode self --without NAMES`` compares decode without these techniques, which is exact, with
guesses that the model makes with them. ``--text FILE --context N`` takes prompts of N tokens of a
text, ``--prompts`` of each length, instead of the cases.

A run that ends early (``--seconds``) is continued by the next one with the same ``--json``: cases
that the file has are not measured again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from benchmarks.common import record
from tamiz.evaluation.bench_process import Child
from tamiz.evaluation.greedy import encode_prompts
from tamiz.files.bundle import Bundle
from tamiz.runtime.model import Model
from tamiz.runtime.sampling import Sampling
from tamiz.runtime.speculation.settings import Speculation
from tamiz.runtime.speculation.statistics import SpeculationStatistics
from tamiz.runtime.text.stream import Speed
from tamiz.runtime.text.tokenizer import Tokenizer

HERE = Path(__file__).resolve().parent
CASES = HERE / "speculation_cases"
#: Tokens decoded before the first case: the weights come into the caches.
WARM_UP = 8
#: The draws of the seeded comparison.
SEEDED = Sampling(temperature=0.8, top_p=0.95, seed=1)
_TASK = "{}\nWrite the whole changed file, and nothing else.\n\n```\n{}```"


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--gguf", type=click.Path(exists=True, path_type=Path), help="For llama.cpp.")
@click.option("--python", "pythons", multiple=True, metavar="PEER=PATH", help="Interpreter of it.")
@click.option("--mode", type=click.Choice(["ngram", "self"]), default="ngram", show_default=True)
@click.option("--without", multiple=True, help="Technique that the answer does without.")
@click.option("--text", type=click.Path(exists=True, path_type=Path), help="For --context.")
@click.option(
    "--context", "contexts", multiple=True, type=int, help="Tokens of a prompt of --text."
)
@click.option("--prompts", "count", default=3, show_default=True, help="Prompts of each length.")
@click.option("--tokens", default=320, show_default=True, help="Tokens of an answer at most.")
@click.option("--kind", "kinds", multiple=True, default=("edit", "quote", "prose"))
@click.option("--rounds", default=1, show_default=True, help="Turns of each case.")
@click.option("--seeded/--greedy-only", default=True, show_default=True)
@click.option("--threads", default=2, show_default=True)
@click.option("--seconds", default=1e9, help="Begin no case after this time.")
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def main(
    bundle: Path,
    gguf: Path | None,
    pythons: tuple[str, ...],
    mode: str,
    without: tuple[str, ...],
    text: Path | None,
    contexts: tuple[int, ...],
    count: int,
    tokens: int,
    kinds: tuple[str, ...],
    rounds: int,
    seeded: bool,
    threads: int,
    seconds: float,
    output: Path | None,
) -> None:
    """Measures BUNDLE on the cases of each kind."""
    end = time.monotonic() + seconds
    known = record.earlier(output).get("cases", {})
    given = prompts(bundle, kinds)
    if text is not None:
        given = long_prompts(bundle, text, contexts, count)
        kinds = tuple(f"{context} tokens" for context in contexts)
    wanted = {name: ids for name, ids in given if name not in known}
    model = Model.load(bundle, threads, without=without)
    list(model.generate([1], Sampling(), WARM_UP, speculation=Speculation("off")))
    peer = None
    if gguf is not None:
        python = dict(entry.partition("=")[::2] for entry in pythons)["llama.cpp"]
        script = str(HERE / "speculation_child.py")
        peer = Child("llama.cpp", [python, script, str(gguf), str(threads)])
    for name, ids in wanted.items():
        if time.monotonic() > end:
            break
        known[name] = answer(model, ids, tokens, rounds, seeded, mode)
        if peer is not None:
            known[name]["llama.cpp"] = peer.request(do="answer", ids=ids, tokens=tokens)
        click.echo(f"{name}: {json.dumps(known[name])}")
    if peer is not None:
        peer.close()
    summary = {kind: summarise(known, kind, mode) for kind in kinds}
    click.echo(json.dumps(summary, indent=1))
    if output is not None:
        prices = {rows: round(model.prices.of(rows), 3) for rows in (2, 4, 8, 16, 32)}
        results = {"summary": summary, "run_price_in_steps": prices, "cases": known}
        settings: dict[str, Any] = {"bundle": bundle, "tokens": tokens, "threads": threads}
        settings |= {"rounds": rounds, "mode": mode, "without": without, "text": text}
        peers = {}
        if gguf is not None:
            settings["gguf"] = gguf
            peers["llama-cpp-python"] = record.version_of(python, "llama-cpp-python")
        record.write(output, "speculation", results, settings=settings, peers=peers)


def prompts(bundle: Path, kinds: tuple[str, ...]) -> Iterator[tuple[str, list[int]]]:
    """Name and token ids of each case."""
    cases = {}
    for kind in kinds:
        for path in sorted((CASES / kind).glob("*.txt")):
            request, _, text = path.read_text("utf-8").partition("---\n")
            prompt = _TASK.format(request, text) if kind == "edit" else f"{request}\n{text}"
            cases[f"{kind}/{path.stem}"] = prompt
    yield from zip(cases, encode_prompts(Bundle.open(bundle), cases.values()), strict=True)


def long_prompts(
    bundle: Path, text: Path, contexts: tuple[int, ...], count: int
) -> Iterator[tuple[str, list[int]]]:
    """Name and token ids of prompts that are parts of a text, one behind the other."""
    ids = Tokenizer(Bundle.open(bundle)).encode(text.read_text("utf-8"), bos=False)
    for context in contexts:
        for number in range(count):
            yield f"{context} tokens/{number}", ids[number * context : (number + 1) * context]


def answer(
    model: Model, ids: list[int], tokens: int, rounds: int, seeded: bool, mode: str
) -> dict[str, Any]:
    """Answers one case in both modes, in turn; the mode that begins changes with the round."""
    sequence = model.sequence(len(ids) + tokens)
    sequence.read(ids[:-1])
    seconds: dict[str, list[float]] = {"off": [], mode: []}
    found: dict[str, list[int]] = {}
    used = SpeculationStatistics()
    for turn in range(rounds):
        for way in ("off", mode)[:: 1 if turn % 2 == 0 else -1]:
            speed, used_now = Speed(), SpeculationStatistics()
            generated = model.generate(
                ids, Sampling(), tokens, sequence, Speculation(way), used_now
            )
            found[way] = list(speed.follow(generated))
            seconds[way].append(speed.decode_seconds)
            used = used_now if way == mode else used
    equal = {"greedy": found["off"] == found[mode]}
    if seeded:
        texts = [
            list(model.generate(ids, SEEDED, tokens, sequence, Speculation(way)))
            for way in ("off", mode)
        ]
        equal["seeded"] = texts[0] == texts[1]
    ratios = [a / b for a, b in zip(seconds["off"], seconds[mode], strict=True) if b]
    count = len(found["off"])
    return {
        "prompt_tokens": len(ids),
        "tokens": count,
        "off_tok_s": _rate(count, seconds["off"]),
        f"{mode}_tok_s": _rate(len(found[mode]), seconds[mode]),
        "ratio": round(statistics.median(ratios), 3) if ratios else 1.0,
        "runs": used.runs,
        "drafted": used.drafted,
        "accepted": used.accepted,
        "self_drafted": used.self_drafted,
        "self_accepted": used.self_accepted,
        "equal": equal,
    }


def _rate(tokens: int, seconds: list[float]) -> float:
    return round((tokens - 1) / max(statistics.median(seconds), 1e-9), 2)


def summarise(cases: dict[str, Any], kind: str, mode: str) -> dict[str, Any]:
    """Medians over the cases of a kind, and the smallest and largest ratio."""
    chosen = [case for name, case in cases.items() if name.startswith(kind + "/")]
    if not chosen:
        return {"cases": 0}
    ratios = [case["ratio"] for case in chosen]
    result = {
        "cases": len(chosen),
        "ratio": round(statistics.median(ratios), 3),
        "ratio_range": [min(ratios), max(ratios)],
        "off_tok_s": statistics.median(case["off_tok_s"] for case in chosen),
        f"{mode}_tok_s": statistics.median(case[f"{mode}_tok_s"] for case in chosen),
        "tokens_per_run": round(
            sum(c["tokens"] for c in chosen) / max(1, sum(c["runs"] for c in chosen)), 2
        ),
        "equal": sum(all(case["equal"].values()) for case in chosen),
    }
    if all("llama.cpp" in case for case in chosen):
        peers = [case["llama.cpp"] for case in chosen]
        for key in ("off_tok_s", "lookup_tok_s"):
            result[f"llama.cpp_{key}"] = round(statistics.median(p[key] for p in peers), 2)
        result["llama.cpp_equal"] = sum(peer["equal"] for peer in peers)
    return result
