"""``tamiz build``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._output import print_json, size
from tamiz.cli._techniques import TechniqueCommand, choices, on_conflict, plugins
from tamiz.errors import TamizError

if TYPE_CHECKING:
    from tamiz.build import Progress


@click.command("build", cls=TechniqueCommand)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="Folder of the bundle."
)
@click.option(
    "--report-json",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the report to this file.",
)
@on_conflict
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    /,
    directory: Path,
    output: Path,
    report_json: Path | None,
    on_conflict: str,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Make a dense bundle smaller and faster."""
    from tamiz.build import build
    from tamiz.bundle import write_json

    if report_json is not None and not report_json.parent.is_dir():
        raise TamizError(f"{report_json}: its folder does not exist")
    chosen = choices(ctx, flags)
    with _progress() as progress:
        report = build(
            directory, output, chosen, plugins(ctx), on_conflict=on_conflict, progress=progress
        )
    if report_json is not None:
        write_json(report_json, report)
    if as_json:
        print_json(report)
    else:
        _print(output, report)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on stderr where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total
        )


def _print(output: Path, report: dict[str, Any]) -> None:
    totals, check = report["totals"], report["check"]
    click.echo(
        f"{output}: {totals['replaced']} of {totals['sites']} weights replaced, "
        f"{totals['exact']} of them exactly; "
        f"{size(totals['bytes_before'])} → {size(totals['bytes_after'])}"
    )
    for site, entry in report["sites"].items():
        for technique in entry["techniques"]:
            if not technique["decision"]["applied"]:
                click.echo(f"{site}: {technique['name']} {technique['decision']['reason']}")
    for entry in report["dropped"]:
        click.echo(f"{entry['site']}: {entry['technique']} dropped, it conflicts with another")
    click.echo("against dense: " + ", ".join(f"{k} {v:.3g}" for k, v in check.items()))
    click.echo(f"{sum(report['seconds'].values()):.1f} s")
