"""Predicted against measured: bytes and decode speed of plans that differ much.

    python benchmarks/plan_speed.py DENSE WORK --calibration C.safetensors

Builds every plan into a folder of WORK (what is there already is used again), without gates: only
bytes and speed are looked at. Then rounds: the machine's profile is measured, and every bundle
decodes in a process of its own; the prediction is `tamiz plan`'s with that round's profile.
Printed: bytes as predicted and as built, decode tok/s as predicted and as measured (medians), and
the median over rounds of predicted / measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tamiz import machine, speed
from tamiz.bench import PAUSE, bundle_child
from tamiz.build import Options, build
from tamiz.bundle import Bundle
from tamiz.inspect import survey
from tamiz.plan import choose, make_plan, predict, totals
from tamiz.plugins import load
from tamiz.policy import read_policy

TOKENS = 48


@dataclass(frozen=True)
class Case:
    """One plan: what the command line would say, what a policy would, and where to decode."""

    wanted: dict[str, Any] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    context: int = 128


HALF = {"layers": "0-14"}
CASES = {
    "int4": Case(),
    "int8": Case({"block-quant": {"bits": 8}}),
    "mixed": Case(policy={"ranges": [{**HALF, "techniques": {"block-quant": {"bits": 8}}}]}),
    "head shortlist": Case({"head-shortlist": {"keep": 3200}}),
    "proc-sparse half": Case(
        policy={"ranges": [{**HALF, "techniques": {"proc-sparse": {"shed_eps": 0}}}]}
    ),
    "seed-delta half": Case(
        policy={"ranges": [{**HALF, "techniques": {"seed-delta": {"k": 128}}}]}
    ),
    "kwta": Case({"kwta": {"k": 0.6}}),
    "int4 at 2,000": Case(context=2000),
    "key/value filter at 2,000": Case({"state-pack": {"keep": 192}}, context=2000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dense", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    plugins = load()
    found = survey(Bundle.open_dense(arguments.dense), plugins)
    predictions, folders = {}, {}
    for name, case in CASES.items():
        folder = folders[name] = arguments.work / name.translate(str.maketrans(" /,", "---"))
        policy_file = folder.with_suffix(".policy.json")
        policy_file.parent.mkdir(parents=True, exist_ok=True)
        policy_file.write_text(
            json.dumps({"version": 1, "defaults": {"gating": {}}, **case.policy})
        )
        choices = choose(plugins.techniques(), case.wanted)
        if not folder.exists():
            options = Options(policy=policy_file, calibration=arguments.calibration, max_dppl=None)
            build(arguments.dense, folder, choices, plugins, options)
        policy = read_policy(policy_file, plugins.techniques(), found.sites)
        plan = make_plan(found.sites, choices, policy=policy)
        predictions[name] = predict(found, plan, case.context)
    measured, ratios, predicted = rounds(found, predictions, folders, arguments.rounds)
    print("| plan | bytes predicted | built | tok/s predicted | measured | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, made in predictions.items():
        report = json.loads((folders[name] / "report.json").read_text())
        values = [statistics.median(v[name]) for v in (predicted, measured, ratios)]
        print(
            f"| {name} | {totals(found, made)[1].stored:,} | {report['totals']['bytes_after']:,} | "
            f"{values[0]:.1f} | {values[1]:.1f} | {values[2]:.2f} |"
        )


def rounds(
    found: Any, predictions: dict[str, Any], folders: dict[str, Path], count: int
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, list[float]]]:
    """Measured tok/s, predicted / measured, and predicted tok/s, by plan, one a round."""
    measured: dict[str, list[float]] = {name: [] for name in predictions}
    ratios: dict[str, list[float]] = {name: [] for name in predictions}
    predicted: dict[str, list[float]] = {name: [] for name in predictions}
    threads = machine.measure().speeds[-1].threads
    children = {name: bundle_child(folder, threads) for name, folder in folders.items()}
    try:
        for name, child in children.items():
            child.prefill(CASES[name].context)
        for _ in range(count):
            profile = machine.measure()
            for name, made in predictions.items():
                time.sleep(PAUSE)
                measured[name].append(children[name].decode(TOKENS))
                found_speeds = speed.predict(found, made, totals(found, made), profile)
                predicted[name].append(found_speeds[-1].after)
                ratios[name].append(predicted[name][-1] / measured[name][-1])
    finally:
        for child in children.values():
            child.close()
    return measured, ratios, predicted


if __name__ == "__main__":
    main()
