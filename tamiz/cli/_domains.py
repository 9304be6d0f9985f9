"""Options that name text: files, and domains of the text that ships with tamiz."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._options import refuse_given

if TYPE_CHECKING:
    from tamiz.calibration.calibrate import Text


#: The name of the text that a model writes itself.
OWN = "own"


def weighted_text(given: str) -> Text:
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


class Domains(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """Names of domains, separated by commas; ``all`` or ``none``."""

    name = "domains"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """The names."""
        from tamiz.calibration.domains import DOMAINS, check_domains

        if isinstance(value, tuple):
            return value
        if value in ("all", "none"):
            return DOMAINS if value == "all" else ()
        names = tuple(dict.fromkeys(str(value).split(",")))
        check_domains(names)
        return names


def domains_read(
    ctx: click.Context, calibration: Path | None, domains: tuple[str, ...] | None
) -> tuple[str, ...]:
    """The shipped domains that a command reads: all, where none is named.

    Raises:
        TamizError: Text is given beside a calibration, which has its own.
    """
    from tamiz.calibration.domains import DOMAINS

    if calibration is not None:
        where = "with --calibration, which has the text"
        refuse_given(ctx, "texts", "domains", where=where, other="--calibration")
    return DOMAINS if domains is None else domains


texts_option = click.option(
    "--text",
    "texts",
    multiple=True,
    type=weighted_text,
    metavar="PATH[=WEIGHT]",
    help="UTF-8 text to read; may be given several times. Each text is a domain of its own. Tokens "
    "of a text with weight 2 count twice as much in means, and are kept twice as often, as those "
    "of a text with weight 1, the default.",
)
domains_option = click.option(
    "--domains",
    type=Domains(),
    metavar="NAMES",
    help="Domains of the text that ships with tamiz, separated by commas: prose, technical, "
    "dialogue, code, data, mathematics, languages, lists; all; none; or own for text that the "
    "model writes itself.  [default: all, unless a calibration file or, in 'tamiz calibrate', a "
    "text or file is given]",
)
