"""``tamiz bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tamiz.cli._options import PATH, Workers, refuse_given
from tamiz.cli._output import print_json, print_table
from tamiz.cli._progress import status
from tamiz.cli._running import Running, running_options, switched_off_line
from tamiz.cli._sources import bundle_at, source
from tamiz.cli._techniques import plugins
from tamiz.runtime.speculation.settings import MODES

#: Cores kept busy by other programs from which on a warning says so.
_BUSY = 0.3
#: Names of speeds, by their keys in the JSON.
_SPEEDS = {
    "decode_tok_s": "decode at {}, tok/s",
    "prefill_tok_s": "prefill of {}, tok/s",
    "embed_texts_s": "{} tokens, texts/s",
}


def lengths(text: str) -> tuple[int, ...]:
    """Numbers of tokens, ``128,2000,8000``.

    Raises:
        BadParameter: The text is another one.
    """
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{text!r} is not a list of whole numbers ≥ 1 such as 128,2000")
    return tuple(int(part) for part in parts)


@click.command("bench")
@source
@click.option("--against", type=PATH, help="Model to compare MODEL with; rounds of both alternate.")
@click.option(
    "--context",
    "contexts",
    type=lengths,
    metavar="N,…",
    help="Context lengths, in tokens, at which decode and prefill are measured; of an encoder, "
    "tokens of a text. A prefill of 512 tokens is always measured. --sweep takes one length.  "
    "[default: 128,2000,8000; of an encoder 16,128,512; with --sweep 128]",
)
@click.option(
    "--sweep",
    metavar="TECHNIQUE.FIELD=V,…",
    help="Build the dense bundle MODEL with each value, as in kwta.k=0.9,0.8. Plots speed over "
    "Δppl (relative increase in perplexity).",
)
@click.option("--text", type=PATH, help="With --sweep: UTF-8 text on which Δppl is measured.")
@click.option("--output", "-o", type=PATH, help="With --sweep: new folder for bundles and plot.")
@click.option(
    "--calibration", type=PATH, help="With --sweep: calibration file of 'tamiz calibrate'."
)
@click.option(
    "--speculate",
    type=click.Choice(MODES),
    default="off",
    show_default=True,
    help="Decode MODEL with guessed tokens, as in 'tamiz run'; the bundle of --against decodes one "
    "token per run. The prompt is random, so your text may repeat more or less than it.",
)
@click.option("--threads", type=Workers(), default=2, show_default=True, help="Number of threads.")
@running_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    path: Path,
    against: Path | None,
    contexts: tuple[int, ...] | None,
    sweep: str | None,
    text: Path | None,
    output: Path | None,
    calibration: Path | None,
    speculate: str,
    threads: int,
    running: Running,
    as_json: bool,
) -> None:
    """Measure speed, memory and load time.

    MODEL is a bundle, a .gguf file or a folder that 'tamiz export' reads; one that is no bundle is
    built once, as 'tamiz serve' does it. Each speed is the median over rounds, with its spread. A
    warning says if other programs kept the processor busy.
    """
    from tamiz.evaluation.bench import CONTEXTS, bench
    from tamiz.files.bundle import Bundle

    if sweep is not None:
        idle = ("against", "speculate", "without", "metrics", "metrics_by_layer")
        refuse_given(ctx, *idle, where="with --sweep", other="--sweep")
        if text is None or output is None:
            raise click.UsageError("--sweep needs --text and --output")
        context, *more = contexts or CONTEXTS[:1]
        if more:
            raise click.UsageError(
                f"--context: found {1 + len(more)} lengths, expected one with --sweep; try "
                f"--context {context}"
            )
        return _sweep(ctx, path, sweep, text, output, calibration, context, threads, as_json)
    if text or output or calibration:
        raise click.UsageError("--text, --output and --calibration belong to --sweep")
    needs_decoder = "--metrics" if running.metrics else None
    if speculate != "off":
        needs_decoder = "--speculate"
    bundle, other = bundle_at(path), against and bundle_at(against)
    with status("memory bandwidth") as progress:
        report = bench(
            bundle,
            other,
            contexts,
            threads,
            progress,
            speculate,
            running.without,
            needs_decoder,
        )
    counted = running.counted(ctx, Bundle.open(bundle), report.pop("counts"))
    _warn(report)
    if as_json:
        print_json({**report, **(counted.json() if counted else {})})
        return
    _print(report, path, against)
    if counted:
        counted.print()


def _warn(report: dict[str, Any]) -> None:
    """Says on stderr what else the speeds depend on."""
    if report["busy_cores"] >= _BUSY:
        click.echo(
            f"warning: other programs kept {report['busy_cores']:.1f} cores busy before the "
            "measurement; speeds are too low and vary, measure again on an idle machine",
            err=True,
        )
    for length, switched_off in report.get("switched_off", {}).items():
        click.echo(switched_off_line(switched_off, int(length)), err=True)


def _sweep(
    ctx: click.Context,
    dense: Path,
    sweep: str,
    text: Path,
    output: Path,
    calibration: Path | None,
    context: int,
    threads: int,
    as_json: bool,
) -> None:
    from tamiz.building.search.sweep import Sweep, run_sweep

    parsed = Sweep.parse(sweep)
    with status("sweep") as progress:
        report = run_sweep(
            dense,
            output,
            parsed,
            plugins(ctx),
            text,
            calibration,
            context=context,
            threads=threads,
            progress=progress,
        )
    if as_json:
        return print_json(report)
    rows = [
        [str(p["value"] or "without"), _percent(p["dppl"]), f"{p['speed']:.2f} ×"]
        for p in report["points"]
    ]
    print_table([report["sweep"], ">Δppl", ">decode"], rows, f"{output / 'sweep.svg'}")


def _percent(loss: float | None) -> str:
    return "not finite" if loss is None else f"{100 * loss:.2f} %"


def _print(report: dict[str, Any], path: Path, against: Path | None) -> None:
    other = report.get("against")
    columns = ["", f">{path.name}"]
    if against is not None:
        columns += [f">{against.name}", ">ratio"]
    rows = []
    for key, name in _SPEEDS.items():
        for length, speed in report.get(key, {}).items():
            row = [name.format(length), _with_spread(speed, report, key, length)]
            if other is not None:
                row.append(_with_spread(other[key][length], other, key, length))
                row.append(f"{report['ratio'][key][length]:.2f} ×")
            rows.append(row)
    for key, name in (
        ("load_s", "load, s"),
        ("peak_rss_mb", "peak RSS, MB"),
        ("bundle_mb", "bundle, MB"),
    ):
        rows.append([name, f"{report[key]:g}", *([f"{other[key]:g}", ""] if other else [])])
    title = f"{report['threads']} threads; memory read {report['read_gb_s']} GB/s"
    print_table(columns, rows, title)
    click.echo("±: half of the range over the rounds, relative to the median")
    step = report.get("step")
    if step and step["disk_mb"] > 0:
        click.echo(
            f"a step reads {step['weights_mb']:.1f} MB of weights, and {step['disk_mb']:.1f} MB"
            f" from the disk: {100 * step['in_memory']:.0f} % of the weights were in memory;"
            f" threads waited {step['faults']:.1f} times for a page"
        )


def _with_spread(speed: float, report: dict[str, Any], key: str, length: str) -> str:
    return f"{speed:.1f} ± {50 * report['spread'][key][length]:.0f} %"
