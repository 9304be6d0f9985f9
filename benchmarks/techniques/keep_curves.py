"""What leaving inputs out costs, by rule and by sites: Δppl over the fraction that is computed.

    python -m benchmarks keep-curves DENSE FOLDER --calibration FILE --text FILE [--windows 2]
        [--groups qkv o gate/up down] [--rules …] [--keep 0.9 0.8 0.7 0.6 0.5]

For every group of sites, rule and fraction a bundle is built with that rule at these sites only
(int4 elsewhere, no gate), scored and deleted. FOLDER gets results.json, to which later calls add
what is missing there, keep_curves.md and keep_curves.svg.

- Rules: KWTA, and what event-driven expects of an input that it leaves out: its last value, or
  AR(1) of a mean. Thresholds of the calibration, single inputs, the first 4 tokens dense, no gap
  checks.
  (The references 0 and mean of event-driven are KWTA and KWTA centred.)
- ``kept``: the fraction that was computed on the text. ``dppl``: over the int4 bundle; KWTA, which
  does the same in a prompt, read as one, worse of all positions and those ≥ 16; event-driven token
  by token from position 16 on. ``kl`` likewise.
- The table has the fraction at an equal Δppl or KL, between neighbours on its curve.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import tamiz_ops
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.evaluation.comparison import LATE
from tamiz.evaluation.evaluate import compare
from tamiz.evaluation.scores import DenseReference, Steps
from tamiz.evaluation.windows import cut
from tamiz.planning.plan import choose
from tamiz.plugins import Plugins, load
from tamiz.runtime.model import Model
from tamiz.runtime.text.tokenizer import Tokenizer

GROUPS = {
    "qkv": "attn_[qkv]",
    "o": "attn_o",
    "gate/up": "ffn_(gate|up)",
    "down": "ffn_down",
}
KWTA, EVENT = "kwta", "event-driven"
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "kwta": (KWTA, {"center": False}),
    "kwta centred": (KWTA, {"center": True}),
    "last": (EVENT, {"reference": "last", "gap_every": 0, "anywhere": True}),
    "ar1": (EVENT, {"reference": "ar1", "gap_every": 0, "anywhere": True}),
}
FRACTION = {KWTA: "k", EVENT: "topk"}
COUNTED = {KWTA: ("kwta.kept", "kwta.blocks"), EVENT: ("event.topk_kept", "event.channels")}
#: Levels of the table: Δppl, and KL.
LEVELS = {"dppl": (0.01, 0.02, 0.05), "kl": (0.01, 0.02, 0.05)}


def policy(path: Path, pattern: str) -> Path:
    """A policy that leaves the rules to the sites of one group."""
    off = {"techniques": {name: {"enable": False} for name in FRACTION}}
    others = f"re:(?!.*{pattern}$).*"
    path.write_text(json.dumps({"version": 1, "sites": {others: off}}), "utf-8")
    return path


def score(
    arguments: argparse.Namespace, plugins: Plugins, base: DenseReference, point: dict[str, Any]
) -> dict[str, float]:
    """Builds the bundle of one point and compares it with `base`."""
    technique, fields = RULES[point["rule"]]
    path = arguments.folder / "point"
    options = Options(
        policy=policy(arguments.folder / "policy.json", GROUPS[point["group"]]),
        calibration=arguments.calibration,
        max_dppl=None,
    )
    wanted = {technique: fields | {FRACTION[technique]: point["keep"]}}
    build(arguments.dense, path, choose(plugins.techniques(), wanted), plugins, options)
    model = Model.load(path, threads=1)
    ids = Tokenizer(model.bundle).encode(arguments.text.read_text("utf-8"), bos=False)
    found = compare(
        model, base, cut(ids, arguments.windows), Steps(LATE) if technique == EVENT else None
    )
    kept, every = (
        sum(node.get(name, 0.0) for node in tamiz_ops.metrics(model.session).values())
        for name in COUNTED[technique]
    )
    del model
    shutil.rmtree(path)
    if found.kl_decode is None:
        return {"kept": kept / every, "dppl": found.dppl, "kl": found.kl_mean}
    assert found.built.ppl_decode is not None
    dppl = found.built.ppl_decode / found.dense.ppl_from_16 - 1
    return {"kept": kept / every, "dppl": dppl, "kl": found.kl_decode}


def at_level(curve: Sequence[dict[str, Any]], measure: str, level: float) -> float | None:
    """The fraction kept where a curve crosses a level; None where it does not.

    Straight lines between neighbours, and to 0 at 1 for Δppl; of the logarithm for KL, which grows
    that way.
    """
    if measure == "kl":
        points = sorted((p["kept"], math.log(p["kl"])) for p in curve)
        level = math.log(level)
    else:
        points = [*sorted((p["kept"], p[measure]) for p in curve), (1.0, 0.0)]
    for (low, loss), (high, less) in reversed(list(pairwise(points))):
        if less <= level <= loss and less < loss:
            return low + (high - low) * (loss - level) / (loss - less)
    return None


def curves(results: Sequence[dict[str, Any]], group: str) -> dict[str, list[dict[str, Any]]]:
    """The points of a group by rule."""
    found = {rule: [p for p in results if (p["group"], p["rule"]) == (group, rule)]
             for rule in RULES}  # fmt: skip
    return {rule: points for rule, points in found.items() if points}


def table(results: Sequence[dict[str, Any]]) -> str:
    """Fractions at equal losses, and the points themselves."""
    levels = [(measure, level) for measure, several in LEVELS.items() for level in several]
    heads = [f"{ {'dppl': 'Δppl', 'kl': 'KL'}[m] } {level:g}" for m, level in levels]
    lines = [["sites", "rule", *heads], ["---"] * (2 + len(heads))]
    for group in GROUPS:
        for rule, points in curves(results, group).items():
            kept = (at_level(points, *level) for level in levels)
            cells = ["" if value is None else f"{value:.3f}" for value in kept]
            lines.append([group, rule, *cells])
    lines += [[], ["sites", "rule", "kept", "Δppl", "KL"], ["---"] * 5]
    lines += [
        [p["group"], p["rule"], f"{p['kept']:.3f}", f"{100 * p['dppl']:+.2f} %", f"{p['kl']:.4f}"]
        for group in GROUPS
        for points in curves(results, group).values()
        for p in sorted(points, key=lambda p: -p["kept"])
    ]
    return "\n".join("| " + " | ".join(line) + " |" if line else "" for line in lines) + "\n"


def plot(results: Sequence[dict[str, Any]]) -> str:
    """KL over the fraction kept, a panel a group; KL is steadier than Δppl."""
    width, height, left, top = 250, 220, 46, 30
    colors = dict(zip(RULES, ("steelblue", "navy", "darkorange", "crimson"), strict=True))
    groups = [group for group in GROUPS if curves(results, group)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{len(groups) * (width + left) + 30}" '
        f'height="{height + 80}" font-family="sans-serif" font-size="11">'
        '<rect width="100%" height="100%" fill="white"/>'
    ]
    for panel, group in enumerate(groups):
        x0, lines = left + panel * (width + left), curves(results, group)
        points = [p for line in lines.values() for p in line]
        low, high = min(p["kept"] for p in points), max(p["kl"] for p in points)

        def place(p: dict[str, Any], x0: int = x0, low: float = low, high: float = high) -> str:
            across = (1 - p["kept"]) / (1 - low) * width
            return f"{x0 + across:.1f} {top + height - p['kl'] / high * height:.1f}"

        parts.append(
            f'<path d="M{x0} {top}V{top + height}H{x0 + width}" fill="none" stroke="black"/>'
            f'<text x="{x0 + 6}" y="{top - 10}">{group}: KL to {high:.2f}, '
            f"kept 1 to {low:.2f}</text>"
        )
        for row, (rule, line) in enumerate(lines.items()):
            ordered = [{"kept": 1.0, "kl": 0.0}, *sorted(line, key=lambda p: -p["kept"])]
            path = "M" + "L".join(map(place, ordered))
            parts.append(f'<path d="{path}" fill="none" stroke="{colors[rule]}"/>')
            parts.append(
                f'<text x="{x0 + 10}" y="{top + 16 + 14 * row}" fill="{colors[rule]}">{rule}</text>'
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def measure(arguments: argparse.Namespace, results: list[dict[str, Any]]) -> None:
    """Adds the points that are not there yet, and writes all after each."""
    plugins = load()
    base = arguments.folder / "int4"
    if not base.exists():
        build(arguments.dense, base, choose(plugins.techniques()), plugins, Options(max_dppl=None))
    reference = DenseReference(Model.load(base, threads=1), arguments.folder)
    path = arguments.folder / "results.json"
    for group in arguments.groups:
        for rule in arguments.rules:
            for keep in arguments.keep:
                point = {"group": group, "rule": rule, "keep": keep, "windows": arguments.windows}
                point["text"] = arguments.text.name
                if any(point.items() <= p.items() for p in results):
                    continue
                results.append(point | score(arguments, plugins, reference, point))
                print(json.dumps(results[-1]), file=sys.stderr, flush=True)
                path.write_text(json.dumps(results, indent=1), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dense", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calibration", type=Path, required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--groups", nargs="*", default=list(GROUPS), choices=GROUPS)
    parser.add_argument("--rules", nargs="*", default=list(RULES), choices=RULES)
    parser.add_argument("--keep", nargs="*", type=float, default=[0.9, 0.8, 0.7, 0.6, 0.5])
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    path = arguments.folder / "results.json"
    results = json.loads(path.read_text("utf-8")) if path.exists() else []
    measure(arguments, results)
    same = {"windows": arguments.windows, "text": arguments.text.name}
    shown = [point for point in results if same.items() <= point.items()]
    (arguments.folder / "keep_curves.md").write_text(table(shown), "utf-8")
    (arguments.folder / "keep_curves.svg").write_text(plot(shown), "utf-8")
    print(table(shown))
