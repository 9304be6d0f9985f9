"""``tamiz eval``."""

from __future__ import annotations

from pathlib import Path

import click

from tamiz.cli._counts import Workers
from tamiz.cli._metrics import RunMetrics, metrics_options
from tamiz.cli._output import print_json, print_table
from tamiz.cli._progress import status
from tamiz.cli._switches import without_option
from tamiz.cli._techniques import acts_on_steps_only


@click.command("eval")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--text",
    required=True,
    type=click.Path(path_type=Path),
    help="UTF-8 text to score, cut into windows of 1,024 tokens.",
)
@click.option(
    "--against", type=click.Path(path_type=Path), help="Dense bundle to compare DIR with."
)
@click.option(
    "--windows",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Number of windows to score, from the start of the text.",
)
@click.option(
    "--decode/--prompt-only",
    default=None,
    help="Also score token by token, as decoding does.  [default: if a technique of DIR acts on "
    "single-token steps only]",
)
@click.option(
    "--threads",
    type=Workers(),
    help="Number of windows scored at once, one thread each.  [default: physical cores]",
)
@without_option
@metrics_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    directory: Path,
    text: Path,
    against: Path | None,
    windows: int,
    decode: bool | None,
    threads: int | None,
    without: tuple[str, ...],
    metrics: bool,
    metrics_by_layer: bool,
    as_json: bool,
) -> None:
    """Measure quality on a text: perplexity and distance from dense.

    DIR is the bundle. With --against the result also has the relative increase in perplexity
    (dppl), the KL divergence (kl_mean, in nats per token) and how often the likeliest token agrees.
    """
    from tamiz.evaluation.evaluate import evaluate
    from tamiz.evaluation.windows import read_windows
    from tamiz.planning.machine import cores
    from tamiz.runtime.model import Model

    built = Model.load(directory, threads=1, without=without)
    dense = None if against is None else Model.load(against, threads=1)
    if decode is None:
        decode = acts_on_steps_only(ctx, set(built.bundle.manifest.techniques) - built.without)
    cuts = read_windows(text, built.bundle, windows)
    with status("load the models") as progress:
        at_once = threads or cores()
        report = evaluate(built, dense, cuts, decode, at_once, progress)
    counted = None
    if metrics or metrics_by_layer:
        counted = RunMetrics(ctx, built.bundle, built.counts())
    if as_json:
        print_json({**report, **(counted.json(metrics_by_layer) if counted else {})})
        return
    print_table(("metric", ">value"), [(key, f"{value:.6g}") for key, value in report.items()])
    if counted:
        counted.print(metrics_by_layer)
