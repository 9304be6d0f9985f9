"""Texts that commands read, one a line, and the speed at which they ran."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tamiz.cli._generation import stdin
from tamiz.files.errors import TamizError
from tamiz.files.text_file import read_text

if TYPE_CHECKING:
    from tamiz.inference.text_batches import Progress, TextSpeed
    from tamiz.system.progress import Progress as Report

batch_size = click.option(
    "--batch-size",
    metavar="N",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Number of texts that are computed together.",
)


def read_lines(source: str) -> list[str]:
    """The lines of a file, or of stdin for ``-``; an empty line is an empty text.

    Raises:
        TamizError: The file cannot be read or has no line.
    """
    content = stdin().read() if source == "-" else read_text(Path(source))
    if not content:
        raise TamizError(f"{source}: is empty, expected one text a line")
    return content.removesuffix("\n").split("\n")


def counted(report: Report, what: str) -> Progress:
    """Progress of texts as progress of a command."""

    def progress(done: int, total: int) -> None:
        report(what, done, total)

    return progress


def speed_text(speed: TextSpeed) -> str:
    """Texts and tokens a second, in words."""
    rates = [("texts", speed.texts_s), ("tokens", speed.tokens_s)]
    return ", ".join(f"{rate:.1f} {name}/s" for name, rate in rates if rate is not None)


def speed_json(speed: TextSpeed) -> dict[str, float | int | None]:
    """Texts and tokens a second, for ``--json``; null where nothing ran."""

    def rounded(rate: float | None) -> float | None:
        return None if rate is None else round(rate, 2)

    return {
        "texts": speed.texts,
        "tokens": speed.tokens,
        "seconds": round(speed.seconds, 4),
        "texts_s": rounded(speed.texts_s),
        "tokens_s": rounded(speed.tokens_s),
    }
