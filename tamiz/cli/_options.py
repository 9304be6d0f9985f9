"""Options that several commands have, what options accept, and which were given."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tamiz.files.errors import TamizError
from tamiz.system.cores import logical_cores

#: Any path; one that is no folder; one that is no file.
PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)

#: Limit per core of the machine; more threads only wait for each other.
_PER_CORE = 16


class Number(click.FloatRange):
    """A number in a range, or any; nan and infinity are none."""

    def _describe_range(self) -> str:
        """The range for help texts and errors; click has no words for one without ends."""
        return "" if self.min is None and self.max is None else super()._describe_range()

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parses the number."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(
                f"{value} is no finite number, expected {self._describe_range() or 'one'}",
                param,
                ctx,
            )
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


new_bundle = click.option(
    "-o", "--output", required=True, type=PATH, help="Folder of the new bundle."
)
threads = click.option(
    "--threads", type=Workers(), help="Number of threads.  [default: physical cores, the fast ones]"
)


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether an option was set by the caller."""
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def refuse_given(ctx: click.Context, *names: str, where: str, other: str) -> None:
    """Refuses options that would have no effect.

    An option that is ``off`` by default may be set to ``off``.

    Args:
        ctx: The running command.
        *names: Parameters of the command.
        where: Where they have no effect: ``with --sweep``.
        other: What else than a removal helps: ``--sweep``, which may go instead, or ``add --text``.

    Raises:
        TamizError: One of them is given.
    """
    options = {option.name: option for option in ctx.command.params}
    for name in names:
        option, value = options[name], ctx.params[name]
        if is_given(ctx, name) and not value == option.default == "off":
            flags = option.secondary_opts if value is False else option.opts
            flag = next(flag for flag in flags if flag.startswith("--"))
            raise TamizError(f"{flag} has no effect {where}; remove {flag} or {other}")
