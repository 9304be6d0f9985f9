"""The model of the commands that run one: a bundle, or a source that is built once."""

from __future__ import annotations

from pathlib import Path

import click

from tamiz.cli._options import PATH
from tamiz.cli._progress import status

source = click.argument("path", metavar="MODEL", type=PATH)


def bundle_at(path: Path) -> Path:
    """The bundle of the model at a path, which shows progress while it makes one.

    Raises:
        TamizError: The model cannot be read or built.
    """
    from tamiz.building.of_source import as_bundle

    with status(f"open {path}") as report:
        return as_bundle(path, report)
