"""``tamiz calibrate``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tamiz.cli._options import FILE, PATH, directory, refuse_given, threads
from tamiz.cli._output import print_json, size
from tamiz.cli._progress import progress_bar
from tamiz.cli._techniques import plugins

if TYPE_CHECKING:
    from tamiz.calibration.calibrate import Text
    from tamiz.calibration.file import Calibration


def _weighted_text(given: str) -> Text:
    """A path, or a path and ``=`` and a number above 0; a file of that whole name comes first."""
    from tamiz.calibration.calibrate import Text

    path, sign, number = given.rpartition("=")
    if not sign or not path or Path(given).exists():
        return Text(Path(given))
    try:
        weight = float(number)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise click.BadParameter(f"{given}: found the weight {number!r}, expected a number above 0")
    return Text(Path(path), weight)


@click.command("calibrate")
@directory
@click.option(
    "-o", "--output", required=True, type=FILE, help="Calibration file to write (.safetensors)."
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    type=_weighted_text,
    metavar="PATH[=WEIGHT]",
    help="UTF-8 text to read; may be given several times. Tokens of a text with weight 2 count "
    "twice as much in means, and are kept twice as often, as those of a text with weight 1, the "
    "default.  [default: prose and chats that the model generates]",
)
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
    help="Limit of the kept input vectors, in MB; fewer are kept beyond it.",
)
@threads
@click.option("--json", "as_json", is_flag=True, help="Print the measured counts as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    directory: Path,
    output: Path,
    texts: tuple[Text, ...],
    merged: tuple[Path, ...],
    windows: int,
    samples: int,
    memory: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Record the inputs of the layers of a dense bundle on a text.

    DIR is the dense bundle. A build uses the recorded inputs to fit weights and to measure quality.
    An interrupted run continues when the command is repeated. With --merge and without --text the
    given files are joined and no text is read.
    """
    from tamiz.calibration.calibrate import calibrate_bundle

    if merged and not texts:
        where = "with --merge alone, which reads no text"
        idle = ("windows", "samples", "memory", "threads")
        refuse_given(ctx, *idle, where=where, other="add --text")
    with progress_bar() as progress:
        result = calibrate_bundle(
            directory,
            output,
            plugins(ctx),
            texts=texts,
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


def _as_dict(result: Calibration) -> dict[str, object]:
    return {
        "tokens": result.count,
        "windows": len(result.windows),
        "samples": {site: len(result.samples[name]) for site, name in result.inputs.items()},
        "inputs": {site: len(result.sums[name]) for site, name in result.inputs.items()},
    }
