"""``tamiz calibrate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tamiz.cli._counts import Workers
from tamiz.cli._output import print_json, size
from tamiz.cli._progress import progress_bar
from tamiz.cli._techniques import plugins

if TYPE_CHECKING:
    from tamiz.calibration.file import Calibration


@click.command("calibrate")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write (.safetensors).",
)
@click.option(
    "--text",
    "texts",
    multiple=True,
    type=click.Path(path_type=Path),
    help="UTF-8 text; may be given several times.  [default: prose and chats that the model "
    "itself writes]",
)
@click.option(
    "--merge",
    "merged",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Also take in this calibration file of the same model; may be given several times.",
)
@click.option(
    "--windows",
    type=click.IntRange(1),
    default=64,
    show_default=True,
    help="Windows of 512 tokens to read of each text.",
)
@click.option(
    "--samples",
    type=click.IntRange(8, 4096),
    default=256,
    show_default=True,
    help="Inputs to keep of every site; of the head up to 8,192.",
)
@click.option(
    "--memory",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="MB that the kept inputs may take; fewer are kept where they would take more.",
)
@click.option("--threads", type=Workers(), help="Threads.  [default: the physical cores]")
@click.option("--json", "as_json", is_flag=True, help="Print what was measured as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    directory: Path,
    output: Path,
    texts: tuple[Path, ...],
    merged: tuple[Path, ...],
    windows: int,
    samples: int,
    memory: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Measure the inputs of the linear layers of the dense bundle DIR on a text.

    Fits weigh their errors with the result, and the gates of a build judge on it. An interrupted
    run goes on where it was. With --merge and without --text only the given files are joined.
    """
    from tamiz.calibration.calibrate import calibrate_bundle

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
