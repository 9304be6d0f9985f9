"""Techniques alone and together: quality and speed, stored for `tools/site/results.py`.

    python -m benchmarks composition build   DENSE FOLDER --calibration FILE [--max-dppl 0.012]
    python -m benchmarks composition quality DENSE FOLDER --text FILE [--windows 8]
    python -m benchmarks composition speed   DENSE FOLDER [--contexts 128,2000,8000]
    python -m benchmarks composition store   DENSE FOLDER --json benchmarks/results/NAME.json

FOLDER gets a bundle for each of TECHNIQUES and of TOGETHER below, and results.json. `--only NAME …`
limits a step to some of the bundles. `store` writes a file of results, from which
`tools/site/results.py` makes a table and a chart of speed over Δppl.

- Every bundle comes from `tamiz build --max-dppl`, so the gate of the whole model has held it; with
  a head shortlist, which recall judges, it has held the same bundle without. Text unlike the
  calibration loses up to twice as much, so the gate asks for 1.2 % where 2 % is wanted.
- kwta masks the feed-forward blocks, in effect the second matrix of each: masks of the small
  matrices of attention take longer than what they leave unread.
- The head shortlist reads less than by default: recall judges it, not its estimates.
- ``dppl``: windows of 1,024 tokens, the worst of prompt, prompt ≥ 16 and decode (`tamiz eval`).
- ``dppl_2048``: the last 256 tokens of windows of 2,048, read one by one after the others.
- ``kl``, ``top1``: of the worse of these two ways, against dense.
- ``recall``: how often the likeliest token of the same bundle without a head shortlist is among
  the exact logits; so a bundle with one is built after that, with its allocation. Perplexities of a
  shortlist are with its estimates of the others.
- Speed: all bundles and dense in turn (`--only` may leave dense out at long contexts), medians of
  rounds, and the ratio to int4 in the same round. `peers` measures other engines.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.common import record
from tamiz.evaluation.bench import bundle_child, measure, ratios, read_bandwidth
from tamiz.evaluation.comparison import LATE, Comparison
from tamiz.evaluation.evaluate import compare
from tamiz.evaluation.scores import DenseReference, Steps
from tamiz.evaluation.windows import cut
from tamiz.runtime.logprobs import log_softmax
from tamiz.runtime.model import Model
from tamiz.runtime.text.tokenizer import Tokenizer
from tamiz.system.cores import cores

#: Flags by the name of a point in the plot; combinations get the flags of all their parts.
TECHNIQUES = {
    "kwta": ["--kwta=on", "--kwta-target=mlp"],
    "head": ["--head-shortlist=on", "--head-shortlist-dims=32", "--head-shortlist-keep=768"],
    "kv": ["--state-pack=on"],
    "kv8": ["--kv-int8=on"],
    "s8": ["--block-quant-scale-bits=8"],
}
#: Combinations, the last one of everything; with "head" in one, recall needs the same without it.
TOGETHER = [
    "kv+kv8",
    "kwta+kv+kv8",
    "kwta+head+kv+kv8",
    "kv+kv8+s8",
    "head+kv+kv8+s8",
    "kwta+kv+kv8+s8",
    "kwta+head+kv+kv8+s8",
]
DENSE, BASE, HEAD = "dense", "int4", "head"
#: Dense against itself.
NO_LOSS = {"dppl": 0.0, "dppl_2048": 0.0, "kl": 0.0, "top1": 1.0, "recall": None}
WINDOW, LONG, SCORED, SLICE = 1024, 2048, 256, 256


def variants() -> dict[str, list[str]]:
    """Flags of every bundle by its name; the last one has everything."""
    return {BASE: []} | {
        name: [flag for part in name.split("+") for flag in TECHNIQUES[part]]
        for name in (*TECHNIQUES, *TOGETHER)
    }


def without_head(name: str) -> str:
    """Name of the same bundle without a head shortlist."""
    return "+".join(part for part in name.split("+") if part != HEAD) or BASE


def allocation(report: dict[str, Any]) -> dict[str, Any]:
    """A policy with the strength that a build has found for kwta."""
    sites: dict[str, Any] = {}
    for site, told in report["sites"].items():
        for entry in told["techniques"]:
            if entry["name"] == "kwta":
                chosen = {"strength": entry["config"]["strength"]}
                own = chosen if entry["decision"]["applied"] else {"enable": False}
                sites[site] = {"techniques": {"kwta": own}}
    return {"version": 1, "sites": sites}


def build(arguments: argparse.Namespace, results: dict[str, Any], names: list[str]) -> None:
    for name in names:
        command = [sys.executable, "-m", "tamiz", "build", str(arguments.dense), "--json"]
        command += ["-o", str(arguments.folder / name)]
        command += ["--calibration", str(arguments.calibration), *variants()[name]]
        twin = arguments.folder / without_head(name) / "report.json"
        if HEAD in name.split("+") and twin.exists():
            policy = arguments.folder / "twin.json"
            policy.write_text(json.dumps(allocation(json.loads(twin.read_text("utf-8")))), "utf-8")
            command += ["--policy", str(policy), "--max-dppl", "off"]
        else:
            command += ["--max-dppl", arguments.max_dppl]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        report = json.loads(done.stdout)
        gate, applied = report["gate"], dict[str, int]()
        for site in report["sites"].values():
            for entry in site["techniques"]:
                count = applied.get(entry["name"], 0)
                applied[entry["name"]] = count + bool(entry["decision"]["applied"])
        results[name] = {
            "flags": variants()[name],
            "bytes": report["totals"]["bytes_after"],
            "applied": applied,
            "gate": gate["skipped"] if gate["built"] is None else gate["trials"][gate["built"]],
        }
        print(name, json.dumps(results[name]), flush=True)


def steps(model: Model, window: list[int]) -> Iterator[np.ndarray]:
    """Logits before each of the last SCORED tokens, read one by one."""
    sequence = model.sequence(len(window))
    yield sequence.read(window[:-SCORED])
    for token in window[-SCORED:-1]:
        yield sequence.step(token)


def prompt(model: Model, window: list[int]) -> np.ndarray:
    """The same, read as a prompt: log p ``[SCORED, V]``."""
    sequence = model.sequence(len(window))
    parts = []
    for start in range(0, len(window) - 1, SLICE):
        logits = sequence.logits(window[start : min(start + SLICE, len(window) - 1)])
        if start + SLICE >= len(window) - SCORED:
            parts.append(log_softmax(logits).astype(np.float32))
    return np.concatenate(parts)[-SCORED:]


def long_quality(model: Model, dense: np.ndarray, window: list[int]) -> tuple[np.ndarray, Any]:
    """nll, nll of dense, KL and agreement ``[4, SCORED]``; logits of the steps' likeliest."""
    rows, likeliest = [], []
    for log_q, logits, token in zip(dense, steps(model, window), window[-SCORED:], strict=True):
        log_p, best = log_softmax(logits), int(logits.argmax())
        divergence = np.exp(log_q, dtype=np.float64) @ (log_q - log_p)
        rows.append([-log_p[token], -log_q[token], divergence, best == log_q.argmax()])
        likeliest.append((best, float(logits[best]), logits.copy()))
    return np.array(rows, np.float64).T, likeliest


def quality(arguments: argparse.Namespace, results: dict[str, Any], names: list[str]) -> None:
    reference = Model.load(arguments.dense, threads=1)
    models = {name: Model.load(arguments.folder / name, threads=1) for name in names}
    ids = Tokenizer(reference.bundle).encode(arguments.text.read_text("utf-8"), bos=False)
    long: dict[str, list[np.ndarray]] = {name: [] for name in names}
    hits: dict[str, list[bool]] = {}
    for number, window in enumerate(cut(ids, arguments.windows, LONG), 1):
        print(f"window {number} of {LONG}", file=sys.stderr, flush=True)
        dense, seen = prompt(reference, window), {}
        with ThreadPoolExecutor(cores()) as pool:
            work = {n: pool.submit(long_quality, m, dense, window) for n, m in models.items()}
        for name, done in work.items():
            rows, seen[name] = done.result()
            long[name].append(rows)
        for name in names:
            twin = without_head(name)
            if HEAD in name.split("+") and twin in seen:
                pairs = zip(seen[twin], seen[name], strict=True)
                found = [mixed[best] == value for (best, value, _), (_, _, mixed) in pairs]
                hits.setdefault(name, []).extend(bool(hit) for hit in found)
    windows = cut(ids, arguments.windows, WINDOW)
    with TemporaryDirectory(dir=arguments.folder) as scratch:
        scores = DenseReference(reference, Path(scratch))
        for name, model in models.items():
            short = compare(model, scores, windows, Steps(LATE), cores())
            results.setdefault(name, {})["quality"] = told = {
                "windows": arguments.windows,
                **both(short, np.concatenate(long[name], axis=1)),
                "recall": float(np.mean(hits[name])) if name in hits else None,
            }
            print(name, json.dumps(told), flush=True)


def both(short: Comparison, long: np.ndarray) -> dict[str, float]:
    """Of the windows of 1,024 and the rows of `long_quality`: the worse of the two."""
    nll, nll_dense, kl, agrees = long.mean(axis=1)
    assert short.kl_decode is not None
    assert short.top1_agreement_decode is not None
    return {
        "dppl": short.dppl,
        "dppl_2048": float(np.exp(nll - nll_dense) - 1),
        "kl": max(float(kl), short.kl_decode),
        "top1": min(float(agrees), short.top1_agreement_decode),
    }


def speed(arguments: argparse.Namespace, results: dict[str, Any], names: list[str]) -> None:
    gb_s = read_bandwidth(2)
    folders = {n: arguments.dense if n == DENSE else arguments.folder / n for n in names}
    children = [bundle_child(folder, 2) for folder in folders.values()]
    contexts = [int(context) for context in arguments.contexts.split(",")]
    try:
        measured = measure(children, contexts, lambda what: print(what, file=sys.stderr))
    finally:
        for child in children:
            child.close()
    base = measured[list(folders).index(BASE)]
    for name, one in zip(folders, measured, strict=True):
        told = results.setdefault(name, {}).setdefault("speed", {"decode_tok_s": {}, "ratio": {}})
        summary = one.summary()
        told["decode_tok_s"] |= {str(c): summary["decode_tok_s"][str(c)] for c in contexts}
        told["ratio"] |= ratios(one.decode, base.decode)
        told["prefill_512_tok_s"] = summary["prefill_tok_s"]["512"]
        told["peak_rss_mb"] = summary["peak_rss_mb"]
        told["read_gb_s"] = round(gb_s, 1)
        print(name, json.dumps(told), flush=True)
    data = sum(file.stat().st_size for file in arguments.dense.glob("*.onnx*"))
    results.setdefault(DENSE, {}).update(bytes=data, quality=NO_LOSS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["build", "quality", "speed", "store"])
    parser.add_argument("dense", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--max-dppl", default="0.012")
    parser.add_argument("--text", type=Path)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--contexts", default="128,2000,8000")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="*")
    arguments = parser.parse_args()
    path = arguments.folder / "results.json"
    arguments.folder.mkdir(parents=True, exist_ok=True)
    results = json.loads(path.read_text("utf-8")) if path.exists() else {}
    if arguments.step == "store":
        if arguments.json is None:
            parser.error("store needs --json FILE")
        settings = {"model": arguments.dense, "windows": arguments.windows}
        record.write(arguments.json, "composition", results, settings=settings)
        return
    names = [*variants(), *([DENSE] if arguments.step == "speed" else [])]
    try:
        {"build": build, "quality": quality, "speed": speed}[arguments.step](
            arguments, results, arguments.only or names
        )
    finally:  # what was measured stays
        path.write_text(json.dumps(results, indent=1), "utf-8")
