"""Builds within limits: size, loss on a text that nothing was chosen on, and decode speed.

    tamiz export model.gguf -o model.ref
    tamiz build model.ref -o model.stored
    tamiz build model.ref -o model.2 --max-dppl 0.02
    python -m benchmarks budgets model.ref model.stored model.2 --text wikitext2-test.txt \
        --json budgets.json

Each bundle is scored against the reference on windows of 1,024 tokens of the text; where it has
techniques that act on single-token steps, also token by token. Then all bundles decode in turns;
`speed` is the ratio to the first bundle, as stored. What the build measured itself comes from the
bundle's report. --skip leaves a part out, and what an existing --json file has of it is kept.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

#: Tokens before the steps that are timed.
CONTEXT = 128


def size(bundle: Path) -> float:
    """MB of a bundle's graph and constants."""
    return round(sum(file.stat().st_size for file in bundle.glob("model.onnx*")) / 1e6, 3)


def gate(bundle: Path) -> dict[str, Any]:
    """Limits and what the build measured of the trial that it built; nothing without a gate."""
    report = json.loads((bundle / "report.json").read_text("utf-8"))
    found = report.get("gate") or {}
    if found.get("built") is None:
        return {}
    trial = found["trials"][found["built"]]
    kept = ("dppl", "dppl_error", "kl_mean", "kl_error", "predicted", "predicted_tok_s")
    measured = {f"own_{name}": trial[name] for name in kept if trial.get(name) is not None}
    limits = {name: found[name] for name in ("max_dppl", "max_kl") if found.get(name) is not None}
    return {**limits, **measured, "trials": len(found["trials"])}


def losses(
    reference: Path, bundles: list[Path], text: Path, windows: int
) -> dict[str, dict[str, float]]:
    """Loss of every bundle on the first windows of a text."""
    from tamiz.evaluation.evaluate import evaluate, steps_of
    from tamiz.evaluation.windows import read_windows
    from tamiz.planning.choice import built_step_rows
    from tamiz.plugins import load
    from tamiz.runtime.model import Model
    from tamiz.system.cores import cores

    techniques = load(only_techniques=True).techniques()
    dense, found = Model.load(reference, 1), {}
    cuts = read_windows(text, dense.bundle, windows)
    for path in bundles:
        built = Model.load(path, 1)
        rows = built_step_rows(techniques, built.bundle.manifest.techniques)
        steps = steps_of(rows)
        result = evaluate(built, dense, cuts, steps, cores())
        found[path.name] = {name: float(f"{value:.5g}") for name, value in result.items()}
        print(f"{path.name:24} {found[path.name]}", file=sys.stderr, flush=True)
    return found


def speeds(bundles: list[Path], context: int, threads: int) -> dict[str, dict[str, float]]:
    """Decode speed of every bundle, and its ratio to that of the first."""
    from tamiz.evaluation.bench import bundle_child, measure, medians, ratios, spreads

    children = [bundle_child(path, threads) for path in bundles]
    try:
        results = measure(children, [context], lambda _: None)
    finally:
        for child in children:
            child.close()
    return {
        path.name: {
            "decode_tok_s": medians(result.decode)[str(context)],
            "speed": ratios(result.decode, results[0].decode)[str(context)],
            "spread": spreads(result.decode)[str(context)],
        }
        for path, result in zip(bundles, results, strict=True)
    }


def main() -> None:
    import click

    from benchmarks.common import record

    @click.command()
    @click.argument("reference", type=click.Path(exists=True, path_type=Path))
    @click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path))
    @click.option("--text", type=click.Path(exists=True, path_type=Path), required=True)
    @click.option("--windows", default=16, show_default=True)
    @click.option("--context", default=CONTEXT, show_default=True)
    @click.option("--threads", default=2, show_default=True)
    @click.option("--skip", type=click.Choice(["loss", "speed"]), multiple=True)
    @click.option("--json", "output", type=click.Path(path_type=Path), required=True)
    def command(
        reference: Path,
        bundles: tuple[Path, ...],
        text: Path,
        windows: int,
        context: int,
        threads: int,
        skip: tuple[str, ...],
        output: Path,
    ) -> None:
        """Measures BUNDLES, the first as stored, against REFERENCE."""
        stored = record.earlier(output)
        paths = list(bundles)
        if len(paths) == 1:
            raise click.UsageError("found one bundle, expected the one as stored and others")
        results: dict[str, Any] = stored.get("bundles", {})
        for path in paths:
            results.setdefault(path.name, {}).update(mb=size(path), **gate(path))
        if "loss" not in skip:
            for name, found in losses(reference, paths[1:], text, windows).items():
                results[name].update(found)
        if "speed" not in skip:
            for name, found in speeds(paths, context, threads).items():
                results[name].update(found)
        settings = {"model": reference, "text": text, "context": context, "windows": windows}
        record.write(output, "budgets", {"threads": threads, "bundles": results}, settings=settings)

    command()
