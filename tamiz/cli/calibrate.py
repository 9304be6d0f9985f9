"""``tamiz calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tamiz.cli._domains import domains_option, texts_option
from tamiz.cli._options import FILE, PATH, refuse_given, threads
from tamiz.cli._output import print_json, size
from tamiz.cli._progress import progress_bar
from tamiz.cli._sources import source, unbuilt
from tamiz.cli._techniques import plugins

if TYPE_CHECKING:
    from tamiz.calibration.calibrate import Text
    from tamiz.calibration.calibration import Calibration


@click.command("calibrate")
@source
@click.option(
    "-o", "--output", required=True, type=FILE, help="Calibration file to write (.safetensors)."
)
@texts_option
@domains_option
@click.option(
    "--merge",
    "merged",
    multiple=True,
    type=PATH,
    help="Calibration file of this model to add; may be given several times.",
)
@click.option(
    "--windows",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Number of windows of 512 tokens that are read from each text, at even distances.",
)
@click.option(
    "--samples",
    type=click.IntRange(8, 16384),
    default=4096,
    show_default=True,
    help="Number of input vectors that are kept per site; the head keeps up to 8,192.",
)
@click.option(
    "--memory",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Largest size of all kept input vectors, in MB; fewer are kept where they do not fit.",
)
@threads
@click.option("--json", "as_json", is_flag=True, help="Print the measured counts as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    path: Path,
    output: Path,
    texts: tuple[Text, ...],
    domains: tuple[str, ...] | None,
    merged: tuple[Path, ...],
    windows: int,
    samples: int,
    memory: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Record the inputs of the layers of a dense bundle on a text.

    MODEL is a dense bundle, or a file or folder that 'tamiz export' reads. Without --text the text
    that ships with tamiz is read. A build uses the recorded inputs to fit weights, and held-out
    windows of the text to measure quality. An interrupted run continues when the command is
    repeated. With --merge and without --text the given files are joined and no text is read.
    """
    from tamiz.calibration.calibrate import calibrate_bundle

    if merged and not texts and not domains:
        where = "with --merge alone, which reads no text"
        idle = ("windows", "samples", "memory", "threads")
        refuse_given(ctx, *idle, where=where, other="add --text")
    installed = plugins(ctx)
    with unbuilt(path, installed) as dense, progress_bar() as progress:
        result = calibrate_bundle(
            dense,
            output,
            installed,
            texts=texts,
            domains=domains,
            merged=merged,
            windows=windows,
            samples=samples,
            memory=memory << 20,
            threads=threads,
            progress=progress,
        )
    if as_json:
        print_json(_as_dict(result))
    else:
        kept = [len(samples) for samples in result.samples.values()]
        click.echo(
            f"{output}: {result.count} tokens, {len(result.sums)} inputs, "
            f"{min(kept)} to {max(kept)} samples of each, {size(output.stat().st_size)}"
        )
        if result.experts:
            click.echo(_of_experts(result))


def _of_experts(result: Calibration) -> str:
    """How evenly experts were taken; the inputs of the second projections count no expert twice."""
    names = {name for site, name in result.expert_inputs.items() if site.endswith("down_exps")}
    counts = [result.experts[name].counts for name in sorted(names)]
    never = sum(int((of_layer == 0).sum()) for of_layer in counts)
    most = max(float(of_layer.max() / of_layer.mean()) for of_layer in counts)
    return (
        f"experts: {never} of {sum(map(len, counts))} were never taken; the most taken one has"
        f" {most:.1f} times the tokens of its layer's mean"
    )


def _as_dict(result: Calibration) -> dict[str, object]:
    return {
        "tokens": result.count,
        "windows": len(result.windows),
        "samples": {site: len(result.samples[name]) for site, name in result.inputs.items()},
        "inputs": {site: len(result.sums[name]) for site, name in result.inputs.items()},
    }
