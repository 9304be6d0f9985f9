"""``tamiz embed``."""

from __future__ import annotations

from pathlib import Path

import click

from tamiz.cli._options import threads
from tamiz.cli._output import print_json
from tamiz.cli._progress import progress_bar
from tamiz.cli._sources import bundle_at, source
from tamiz.cli._texts import batch_size, counted, read_lines, speed_json, speed_text


@click.command("embed")
@source
@click.argument("file", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print the embeddings and speed as JSON.")
@click.option(
    "--npy",
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Write the embeddings as a NumPy file, float32 [texts, width].",
)
@batch_size
@click.option("--normalize", is_flag=True, help="Scale every embedding to length 1.")
@click.option("--prompt", metavar="TEXT", help="Text to put before each text.")
@click.option("--prompt-name", metavar="NAME", help="Prompt of the bundle to put before each text.")
@click.option(
    "--truncate-dim",
    metavar="N",
    type=click.IntRange(1),
    help="Number of leading numbers of an embedding to keep; all by default.",
)
@threads
def command(
    path: Path,
    file: str,
    as_json: bool,
    npy: Path | None,
    batch_size: int,
    normalize: bool,
    prompt: str | None,
    prompt_name: str | None,
    truncate_dim: int | None,
    threads: int | None,
) -> None:
    """Compute the embedding of each line of a file.

    MODEL is an encoder: a bundle, or a GGUF file or folder that 'tamiz export' reads, which is
    built once, as 'tamiz serve' does it. FILE has one text a line; - reads stdin.
    """
    from tamiz.files.outputs import check_output
    from tamiz.inference.embedding_model import EmbeddingModel

    if as_json == (npy is not None):
        raise click.UsageError("Missing option '--json' or '--npy PATH': expected one of both")
    if prompt is not None and prompt_name is not None:
        raise click.UsageError("--prompt and --prompt-name exclude each other")
    if npy is not None:
        inputs = [path] if file == "-" else [path, Path(file)]
        check_output(npy, "a NumPy file", _is_npy, inputs)
    texts = read_lines(file)
    model = EmbeddingModel.load(bundle_at(path), threads=threads)
    with progress_bar() as report:
        found = model.embed(
            texts,
            batch_size=batch_size,
            normalize=normalize,
            prompt=prompt,
            prompt_name=prompt_name,
            truncate_dim=truncate_dim,
            progress=counted(report, "texts"),
        )
    if npy is None:
        shortest = found.astype(str).astype(float)  # as few digits as give the same float32
        print_json({"embeddings": shortest.tolist(), **speed_json(model.speed)})
        return
    import numpy as np

    with npy.open("wb") as out:
        np.save(out, found)
    click.echo(f"{npy}: {len(found)} embeddings of {found.shape[1]} numbers")
    click.echo(speed_text(model.speed))


def _is_npy(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6) == b"\x93NUMPY"
