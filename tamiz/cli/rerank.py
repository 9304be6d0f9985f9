"""``tamiz rerank``."""

from __future__ import annotations

from pathlib import Path

import click

from tamiz.cli._options import threads
from tamiz.cli._output import print_json
from tamiz.cli._progress import progress_bar
from tamiz.cli._sources import bundle_at, source
from tamiz.cli._texts import batch_size, counted, read_lines, speed_json, speed_text


@click.command("rerank")
@source
@click.argument("query")
@click.argument("file", metavar="FILE")
@click.option(
    "--top", metavar="N", type=click.IntRange(1), help="Number of texts to print; all by default."
)
@click.option("--prompt", metavar="TEXT", help="Text to put before each pair.")
@click.option("--prompt-name", metavar="NAME", help="Prompt of the bundle to put before each pair.")
@batch_size
@threads
@click.option("--json", "as_json", is_flag=True, help="Print the scores and speed as JSON.")
def command(
    path: Path,
    query: str,
    file: str,
    top: int | None,
    prompt: str | None,
    prompt_name: str | None,
    batch_size: int,
    threads: int | None,
    as_json: bool,
) -> None:
    """Order the lines of a file by how well they answer a query.

    MODEL is a reranker: a bundle, or a GGUF file or folder that 'tamiz export' reads, which is
    built once, as 'tamiz serve' does it. FILE has one text a line; - reads stdin.
    """
    from tamiz.inference.cross_encoder import CrossEncoder

    if prompt is not None and prompt_name is not None:
        raise click.UsageError("--prompt and --prompt-name exclude each other")
    texts = read_lines(file)
    model = CrossEncoder.load(bundle_at(path), threads=threads)
    with progress_bar() as report:
        scores = model.rerank(
            query,
            texts,
            batch_size=batch_size,
            prompt=prompt,
            prompt_name=prompt_name,
            progress=counted(report, "texts"),
        )
    order = sorted(range(len(texts)), key=lambda line: -scores[line])[:top]
    if as_json:
        results = [
            {"index": line, "score": float(scores[line]), "text": texts[line]} for line in order
        ]
        print_json({"results": results, **speed_json(model.speed)})
        return
    for line in order:
        click.echo(f"{scores[line]:.4f}  {texts[line]}")
    click.echo(speed_text(model.speed), err=True)
