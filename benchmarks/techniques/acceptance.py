"""In which situations five techniques keep what their documents promise: size, speed and loss.

    python -m benchmarks acceptance layers [TECHNIQUE …] --json layers.json
    python -m benchmarks acceptance bundles model.gguf FOLDER --text wikitext2-test.txt \
        --json bundles.json

`layers` makes one linear layer of a 7B model, 4096 x 11008, for the situation that each technique
is for, and multiplies one row. Baselines are float32 and int4. As in products.py the weights of a
run are 640 MB together, so that no cache holds them.

- ternary: weights of −1, 0 and +1 times a scale for each output.
- proc-sparse: 1/2 or 1/4 of the blocks (16 outputs x 32 inputs) exist, the others are 0.
- tt: the weight is a tensor train (TT) of three cores with the given rank. A run has 32 layers,
  whose cores stay in the cache: 1.2 MB each at rank 32.
- event-driven: each input is an AR(1) process, x_t = ρ x_t−1 + √(1 − ρ²) noise. Steps choose
  single inputs or blocks of 32. The fit takes the smallest fraction of inputs whose gap is within
  3 % in its simulation; `computed` is what the steps computed. The only baseline is int4, and the
  size does not count, as the weight is int4 with and without event-driven.

`bundles` builds a whole model with proc-sparse or seed-delta at every linear layer, without a gate.
FOLDER keeps the bundles for later calls. The baselines have these layers in float32, or the whole
model as stored; the head is as stored everywhere. Decode starts at 128 tokens of context. --skip
leaves a part out, and what an existing --json file has of it is kept.

Columns of the table, each with its limit in brackets:

- size: bytes of the layer's weight or of the bundle, % of the baseline's.
- speed: baseline's time / technique's time, interleaved; median and range over rounds.
- loss: of a layer ‖ŷ − y‖ / ‖y‖ of its output, where y is the float product with the same
  weight (event-driven: with all inputs); of a bundle Δppl.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.common import record
from benchmarks.common.graphs import interleaved
from benchmarks.quality.budgets import losses, size
from benchmarks.techniques.made_layers import FLOAT32, INT4, LAYERS, K, Layer, Place, baselines
from tamiz.building.build import build
from tamiz.building.options import Options
from tamiz.evaluation.bench import PAUSE, bundle_child
from tamiz.planning.plan import choose
from tamiz.plugins import load
from tamiz.survey.export import export

#: Limits of the documents of proc-sparse, seed-delta and event-driven; ternary and tt, whose
#: documents have none, are held to the same.
SPEED, SIZE, LOSS, GAP = 1.10, 0.50, 0.02, 0.03
STORED = "source format"
#: Largest size relative to each baseline: int4 and stored weights are small already.
SIZES = {FLOAT32: SIZE, INT4: 1.0, STORED: 1.0}
ROUNDS = 9
#: Tokens of context, and decoded in a round.
CONTEXT, TOKENS = 128, 32

EVERYTHING = {"fanout": 4096, "base_scale": 0, "shed_eps": 0}
SEEDLM = {"target": "both", "base": "seedlm", "k": 0}
#: Technique, situation and configuration of every bundle.
BUNDLES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "proc-all": ("proc-sparse", "all weights stored", EVERYTHING),
    "proc-shed": ("proc-sparse", "weights < 0.3 rms dropped", EVERYTHING | {"shed_eps": 0.3}),
    "seed-all": (
        "seed-delta",
        "all of the residual in int4, no base",
        {"target": "both", "bits": 4, "k": 4096},
    ),
    "seedlm-4": ("seed-delta", "SeedLM, 4 bits", SEEDLM | {"base_bits": 4}),
    "seedlm-3": ("seed-delta", "SeedLM, 3 bits", SEEDLM | {"base_bits": 3}),
}
#: Policies: nothing is refused for its error; float32 stays in the layers.
OPEN = {"version": 1, "defaults": {"gating": {"min_mean": -1}}}
FLOATS = {
    "version": 1,
    "sites": {r"re:layers\..*": {"techniques": {"block-quant": {"enable": False}}}},
}


def row(
    names: tuple[str, str], against: str, speeds: list[float], loss: float, ratio: float | None
) -> dict[str, Any]:
    """One line of the table.

    Args:
        names: Technique and situation.
        against: The baseline.
        speeds: Relative to the baseline, by round.
        loss: Relative error of the output, or Δppl.
        ratio: Size relative to the baseline; None where it does not count.
    """
    limits = {"speed": SPEED, "loss": GAP if names[0] == "event-driven" else LOSS}
    found = {"speed": statistics.median(speeds), "loss": loss}
    if ratio is not None:
        limits["size"], found["size"] = SIZES[against], ratio
    kept = {name: value <= limits[name] for name, value in found.items()}
    kept["speed"] = found["speed"] >= SPEED
    return {
        "technique": names[0],
        "situation": names[1],
        "against": against,
        **found,
        "speed_range": [min(speeds), max(speeds)],
        "limits": limits,
        "holds": all(kept.values()),
    }


def line(found: Mapping[str, Any]) -> str:
    """A row as it is printed."""
    limits, (low, high) = found["limits"], found["speed_range"]
    cells = ["{technique:13}{situation:47}{against:10}".format(**found)]
    of_size = f"{found['size']:6.1%} ({limits['size']:.0%})" if "size" in found else ""
    cells.append(f"{of_size:14}")
    cells.append(f"{found['speed']:6.2f} x ({limits['speed']:.2f}) {low:6.2f} to {high:<6.2f}")
    cells.append(f"{found['loss']:9.3%} ({limits['loss']:.0%})")
    return " ".join([*cells, "holds" if found["holds"] else "does not hold"])


def layer_rows(techniques: Sequence[str], threads: int) -> list[dict[str, Any]]:
    """Times the layers of each technique and the baselines in turns."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        x = rng.standard_normal((1, K), np.float32)
        place = Place(threads, Path(folder), rng, x)
        bases = baselines(place)
        return [found for name in techniques for found in timed(bases, [*LAYERS[name](place)])]


def timed(bases: Sequence[Layer], layers: Sequence[Layer]) -> list[dict[str, Any]]:
    """Rows of layers over baselines."""
    every = [*bases, *layers]
    for layer in every:  # its weights come from the disk
        layer.run()
    rounds = [interleaved(2, *(layer.run for layer in every)) for _ in range(ROUNDS)]
    times = np.array(rounds) / [layer.copies for layer in every]
    rows = []
    for layer, own in zip(layers, times.T[len(bases) :], strict=True):
        loss, situation = layer.told()
        for base, theirs in zip(bases, times.T, strict=False):
            if layer.size is None and base.names[0] != INT4:
                continue  # its weight is int4 with and without
            ratio = None if layer.size is None or base.size is None else layer.size / base.size
            names = (layer.names[0], situation)
            made = row(names, base.names[0], (theirs / own).tolist(), loss, ratio)
            rows.append(made | {"us": float(np.median(own) * 1e6)})
    return rows


def make(source: str, folder: Path) -> dict[str, Path]:
    """Exports the model and builds what is not in the folder yet; all bundles by name."""
    plugins = load()
    techniques = plugins.techniques()
    folder.mkdir(parents=True, exist_ok=True)

    def exported(name: str, dtype: str | None) -> Path:
        if not (folder / name).exists():
            export(source, folder / name, plugins, dtype)
        return folder / name

    def built(
        name: str, reference: Path, policy: Mapping[str, Any], wanted: Mapping[str, Any]
    ) -> Path:
        if not (folder / name).exists():
            click.echo(f"build of {name}", err=True)
            written = folder / "policy.json"
            written.write_text(json.dumps(policy), "utf-8")
            options = Options(policy=written, max_dppl=None)
            build(reference, folder / name, choose(techniques, wanted), plugins, options)
        return folder / name

    reference = exported("reference", None)
    made = {
        FLOAT32: built(FLOAT32, exported("reference-float32", "float32"), FLOATS, {}),
        STORED: built(STORED, reference, OPEN, {}),
    }
    for name, (technique, _, fields) in BUNDLES.items():
        made[name] = built(name, reference, OPEN, {technique: fields})
    return made


def decode_speeds(bundles: Mapping[str, Path], threads: int) -> dict[str, list[float]]:
    """Tokens per second of every bundle by round, all of them in turns."""
    children = {name: bundle_child(path, threads) for name, path in bundles.items()}
    found: dict[str, list[float]] = {name: [] for name in bundles}
    try:
        for turn in range(ROUNDS + 1):
            for name, child in children.items():
                time.sleep(PAUSE)
                child.prefill(CONTEXT)
                speed = child.decode(TOKENS)
                if turn:  # the first one fills the caches
                    found[name].append(round(speed, 2))
    finally:
        for child in children.values():
            child.close()
    return found


def bundle_rows(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The table of the bundles that have speed and loss."""
    rows = []
    for name, (technique, situation, _) in BUNDLES.items():
        own = found[name]
        for against in (FLOAT32, STORED):
            base = found[against]
            if {"tok_s", "dppl"} <= set(own) and "tok_s" in base:
                pairs = zip(own["tok_s"], base["tok_s"], strict=True)
                speeds = [mine / theirs for mine, theirs in pairs]
                ratio = own["mb"] / base["mb"]
                rows.append(row((technique, situation), against, speeds, own["dppl"], ratio))
    return rows


def finish(path: Path | None, results: dict[str, Any], settings: dict[str, Any]) -> None:
    """Prints the table, and stores the results."""
    for found in results["rows"]:
        click.echo(line(found))
    if path is not None:
        record.write(path, "acceptance", results, settings=settings)


@click.group(help=str(__doc__).splitlines()[0])
def main() -> None:
    """Has two parts, layers and bundles."""


@main.command()
@click.argument("techniques", nargs=-1, type=click.Choice([*LAYERS]))
@click.option("--threads", default=2, show_default=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def layers(techniques: tuple[str, ...], threads: int, output: Path | None) -> None:
    """Times made layers of TECHNIQUES, by default of all; other rows of --json are kept."""
    names = techniques or tuple(LAYERS)
    earlier = [r for r in record.earlier(output).get("rows", []) if r["technique"] not in names]
    rows = earlier + layer_rows(names, threads)
    finish(output, {"threads": threads, "rows": rows}, {"model": "made layers, 4096 x 11008"})


@main.command()
@click.argument("source")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--text", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--windows", default=16, show_default=True, help="Windows of 1,024 tokens.")
@click.option("--threads", default=2, show_default=True)
@click.option("--skip", type=click.Choice(["loss", "speed"]), multiple=True)
@click.option("--json", "output", type=click.Path(path_type=Path), help="Also write this file.")
def bundles(
    source: str,
    folder: Path,
    text: Path,
    windows: int,
    threads: int,
    skip: tuple[str, ...],
    output: Path | None,
) -> None:
    """Builds bundles of SOURCE in FOLDER, and measures them."""
    made = make(source, folder)
    found = record.earlier(output).get("bundles", {})
    for name, path in made.items():
        found.setdefault(name, {})["mb"] = size(path)
    if "loss" not in skip:
        paths = [made[name] for name in BUNDLES]
        for name, told in losses(folder / "reference", paths, text, windows).items():
            found[name].update(told)
    if "speed" not in skip:
        for name, speeds in decode_speeds(made, threads).items():
            found[name]["tok_s"] = speeds
    results = {"threads": threads, "bundles": found, "rows": bundle_rows(found)}
    settings = {"model": Path(source), "text": text, "windows": windows, "context": CONTEXT}
    finish(output, results, settings)
