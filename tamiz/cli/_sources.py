"""The model of a command: a bundle, or a source, which those that run a model build once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tamiz.cli._options import PATH
from tamiz.cli._progress import status

if TYPE_CHECKING:
    from tamiz.plugins import Plugins

source = click.argument("path", metavar="MODEL", type=PATH)


def bundle_at(path: Path) -> Path:
    """The bundle of the model at a path, which shows progress while it makes one.

    Raises:
        TamizError: The model cannot be read or built.
    """
    from tamiz.building.of_source import as_bundle

    with status(f"open {path}") as report:
        return as_bundle(path, report)


@contextmanager
def unbuilt(path: Path | str, loaded: Plugins, place: Path | None = None) -> Iterator[Path]:
    """The bundle of the model at a path, not built where it is none yet; see `dense_of`.

    Raises:
        TamizError: The model cannot be read, or `place` must not be written.
    """
    from tamiz.building.of_source import dense_of

    with ExitStack() as made:
        with status(f"open {path}") as report:
            bundle = made.enter_context(dense_of(path, loaded, report, place))
        yield bundle
