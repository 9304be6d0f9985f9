"""Predicted against measured: bytes and decode speed of plans that differ much.

    python -m benchmarks plan-speed DENSE WORK --calibration C.safetensors [--only NAME …]

Builds every plan into a folder of WORK (what is there already is used again), without gates: only
bytes and speed are looked at. Then rounds: the machine's profile is measured, and every bundle
decodes in a process of its own; the prediction is `tamiz plan`'s with that round's profile.
Printed: bytes as predicted and as built, decode tok/s as predicted and as measured (medians), the
median over rounds of predicted / measured and its least and largest value.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.evaluation.bench import PAUSE, bundle_child
from tamiz.evaluation.measure_machine import measure
from tamiz.files.bundle import Bundle
from tamiz.planning import speed
from tamiz.planning.costs import Prediction, predict, totals
from tamiz.planning.plan import choose, make_plan
from tamiz.planning.policy import read_policy
from tamiz.plugins import load
from tamiz.survey.survey import Survey, survey
from tamiz.system.cores import cores

TOKENS = 48


@dataclass(frozen=True)
class Case:
    """One plan: what the command line would say, what a policy would, and where to decode."""

    wanted: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    contexts: tuple[int, ...] = (128,)


def half(technique: str, **fields: Any) -> dict[str, Any]:
    """A policy that switches a technique on in the first half of 30 layers."""
    return {"ranges": [{"layers": "0-14", "techniques": {technique: fields}}]}


HEAD: dict[str, Any] = {"head-shortlist": {"keep": 768}}
KWTA: dict[str, Any] = {"kwta": {}}
FILTER: dict[str, Any] = {"state-pack": {}}
BYTES: dict[str, Any] = {"kv-int8": {}}
CASES = {
    "int4": Case(contexts=(128, 2000, 8000)),
    "int8": Case({"block-quant": {"bits": 8}}),
    "scales of 8 bits": Case({"block-quant": {"scale_bits": 8}}),
    "half int8": Case(policy=half("block-quant", bits=8)),
    "head shortlist": Case(HEAD),
    "kwta": Case(KWTA),
    "kwta 0.6 everywhere": Case({"kwta": {"k": 0.6}}),
    "state-pack": Case(FILTER, contexts=(2000, 8000)),
    "event-attention": Case({"event-attention": {}}, contexts=(2000, 8000)),
    "kv-int8": Case(BYTES, contexts=(2000,)),
    "kwta, head, state-pack, kv-int8": Case({**KWTA, **HEAD, **FILTER, **BYTES}, contexts=(2000,)),
    "half proc-sparse": Case(policy=half("proc-sparse", shed_eps=0)),
}


@dataclass(frozen=True)
class Run:
    """A bundle at one context, and what its plan says of it."""

    name: str
    folder: Path
    context: int
    costs: list[Prediction]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dense", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=CASES, choices=CASES, metavar="NAME")
    arguments = parser.parse_args()
    found, runs = prepare(arguments)
    results = rounds(found, runs, arguments.rounds)
    print("| plan | at | bytes predicted | built | tok/s predicted | measured | ratio | |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for run, pairs in zip(runs, results, strict=True):
        report = json.loads((run.folder / "report.json").read_text())
        stored, built = totals(found, run.costs)[1].stored, report["totals"]["bytes_after"]
        predicted, measured = map(statistics.median, zip(*pairs, strict=True))
        ratios = [a / b for a, b in pairs]
        print(
            f"| {run.name} | {run.context:,} | {stored:,} | {built:,} | {predicted:.1f} | "
            f"{measured:.1f} | {statistics.median(ratios):.2f} | "
            f"{min(ratios):.2f} to {max(ratios):.2f} |"
        )


def prepare(arguments: argparse.Namespace) -> tuple[Survey, list[Run]]:
    """The dense bundle's survey, and every bundle, built where it is not there."""
    plugins = load()
    found = survey(Bundle.open_dense(arguments.dense), plugins)
    runs = []
    arguments.work.mkdir(parents=True, exist_ok=True)
    for name in arguments.only:
        case, folder = CASES[name], arguments.work / name.replace(", ", "-").replace(" ", "-")
        policy_file = folder.with_suffix(".policy.json")
        policy_file.write_text(
            json.dumps({"version": 1, "defaults": {"gating": {}}, **case.policy})
        )
        choices = choose(plugins.techniques(), case.wanted)
        if not folder.exists():
            options = Options(policy=policy_file, calibration=arguments.calibration, max_dppl=None)
            build(arguments.dense, folder, choices, plugins, options)
        policy = read_policy(policy_file, plugins.techniques(), found.sites)
        plan = make_plan(found.sites, choices, policy=policy)
        runs += [Run(name, folder, c, predict(found, plan, c)) for c in case.contexts]
    return found, runs


def rounds(found: Survey, runs: Sequence[Run], count: int) -> list[list[tuple[float, float]]]:
    """Predicted and measured tok/s of every run, a pair a round."""
    pairs: list[list[tuple[float, float]]] = [[] for _ in runs]
    threads = cores()
    children = [bundle_child(run.folder, threads) for run in runs]
    try:
        for run, child in zip(runs, children, strict=True):
            child.prefill(run.context)
        for _ in range(count):
            profile = measure()
            for run, child, made in zip(runs, children, pairs, strict=True):
                time.sleep(PAUSE)
                measured = child.decode(TOKENS)
                speeds = speed.predict(found, run.costs, totals(found, run.costs), profile)
                made.append((speeds[-1].after, measured))
    finally:
        for child in children:
            child.close()
    return pairs
