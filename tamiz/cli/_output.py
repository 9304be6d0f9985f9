"""What the commands print: JSON, tables, folded rows, sizes."""

from __future__ import annotations

import json
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from tamiz.files.errors import printable, without_controls

if TYPE_CHECKING:
    from tamiz.api.cost import Cost
    from tamiz.api.site import Site


_NUMBER = re.compile(r"\d[\d.]*")
#: A list of numbers over several lines; a line break in a string is escaped.
_NUMBERS = re.compile(r"\[(\n *[-+.\deE]+,?)+\n *\]")
#: Characters of the longest bar of a chart.
BAR = 40


def print_answer(pieces: Iterable[str]) -> None:
    """Prints what a model writes, as it comes; to a terminal without control characters.

    Elsewhere the text is printed as it is: ``color`` keeps click from taking escape sequences out.
    """
    to_terminal = sys.stdout.isatty()
    for piece in pieces:
        click.echo(without_controls(piece) if to_terminal else piece, nl=False, color=True)
    click.echo()


def print_json(value: Mapping[str, Any]) -> None:
    """Prints one JSON object on stdout; a number that is not finite is null.

    A list of numbers, such as an embedding, is one line.
    """
    text = json.dumps(_finite(value), indent=1, allow_nan=False)
    click.echo(_NUMBERS.sub(lambda found: re.sub(r"\n *", "", found[0]).replace(",", ", "), text))


def _finite(value: Any) -> Any:
    """A value of a JSON object with null for numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return value


def loss_text(label: str, value: float | None) -> str:
    """A measured loss with its name.

    Args:
        label: What it is called.
        value: What was measured; None for a loss that is not finite.
    """
    return f"{label} {'not finite' if value is None else value}"


#: A cell of a table: one line, or several.
Cell = str | tuple[str, ...]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "") -> None:
    """Prints a table; columns whose name starts with ``>`` are aligned to the right.

    A line break inside of a line is escaped, as it may come from a file that is not trusted.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 100
    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for index, column in enumerate(columns):
        table.add_column(
            column.lstrip(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
            no_wrap=index == 0 or column.startswith(">"),
        )
    for row in rows:
        table.add_row(*map(_lines, row))
    console.print(table)


def _lines(cell: Cell) -> str:
    return "\n".join(map(printable, (cell,) if isinstance(cell, str) else cell))


def print_bars(title: str, values: Mapping[str, float]) -> None:
    """Prints a chart: a bar for each value, the longest `BAR` characters long, and its number.

    Args:
        title: What is compared, with its unit.
        values: Numbers from 0, by name; at least one.
    """
    largest = max(values.values())
    names = {name: printable(name) for name in values}
    width = max(map(len, names.values()))
    click.echo(title)
    for name, value in values.items():
        filled = bar(round(BAR * value / largest) if largest else 0)
        click.echo(f"  {names[name]:<{width}}  {filled:<{BAR}} {value:>9,.4g}")


def bar(length: int) -> str:
    """A bar of a chart in the terminal, `length` characters long.

    Block characters, or number signs where stdout's encoding has none.
    """
    full = "\N{FULL BLOCK}"
    try:
        full.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        full = "#"
    return full * length


def size(count: int) -> str:
    """A number of bytes in decimal units, ``12.3 MB``."""
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.2f} GB"


def experts_line(cost: Cost) -> str:
    """What the weights of experts cost."""
    return f"experts: {size(cost.stored)}, of which a token reads {size(cost.read)}"


def alike(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Joins rows whose sentences differ in numbers only.

    Args:
        rows: A name and a sentence each.

    Returns:
        The name, the number of rows joined, and the sentence of the first row.
    """
    counts = Counter((name, _NUMBER.sub("", text)) for name, text in rows)
    first = {(name, _NUMBER.sub("", text)): text for name, text in reversed(rows)}
    return [(key[0], str(count), first[key]) for key, count in counts.items()]


def fold(rows: Iterable[tuple[Site, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """Joins rows that differ in the layer only.

    Args:
        rows: Sites with the cells to show for each.

    Returns:
        Rows of ``layers.0-29.attn_q``, how many sites that is, and their cells.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[Site]] = {}
    for site, cells in rows:
        before, _, after = site.id.partition(f".{site.layer}.")
        groups.setdefault((before, after, cells), []).append(site)
    return [
        (_name(before, after, sites), str(len(sites)), *cells)
        for (before, after, cells), sites in groups.items()
    ]


def _name(before: str, after: str, sites: Sequence[Site]) -> str:
    layers = [site.layer for site in sites if site.layer is not None]
    return f"{before}.{_ranges(layers)}.{after}" if after else before


def _ranges(numbers: Sequence[int]) -> str:
    """``0-3,5`` for 0, 1, 2, 3 and 5."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
