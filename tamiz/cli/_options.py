"""Options that several commands have, and what options accept: paths, numbers, threads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from tamiz.system.cores import logical_cores

#: Any path; one that is no folder; one that is no file.
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)

#: Limit per core of the machine; more threads only wait for each other.
_PER_CORE = 16


class Number(click.FloatRange):
    """A number in a range; nan and infinity are in none."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parses the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number, expected {self._describe_range()}", param, ctx)
        return number


class Workers(click.IntRange):
    """A number of threads or processes: at least one, not far more than the machine has cores."""

    def __init__(self) -> None:
        super().__init__(min=1)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parses the number."""
        number: int = super().convert(value, param, ctx)
        cores = logical_cores()
        if number > _PER_CORE * cores:
            self.fail(
                f"{number} is too many for {cores} cores, expected at most {_PER_CORE * cores}",
                param,
                ctx,
            )
        return number


directory = click.argument("directory", metavar="DIR", type=PATH)
new_bundle = click.option(
    "-o", "--output", required=True, type=PATH, help="Folder of the new bundle."
)
threads = click.option(
    "--threads", type=Workers(), help="Number of threads.  [default: physical cores]"
)
