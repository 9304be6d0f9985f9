"""``tamiz diff``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from tamiz.cli._options import PATH
from tamiz.cli._output import fold, loss_text, print_json, print_table, size


@click.command("diff")
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@click.option("--json", "as_json", is_flag=True, help="Print the differences as JSON.")
@click.pass_context
def command(ctx: click.Context, a: Path, b: Path, as_json: bool) -> None:
    """Show the differences between two bundles.

    Compares the files, operators, bytes and decisions of the bundles A and B. Exits with code 0 if
    the bundles are equal and with code 1 if they differ.
    """
    from tamiz.files.bundle import Bundle
    from tamiz.reporting.diff import differences

    differing = differences(Bundle.open(a), Bundle.open(b))
    if as_json:
        print_json(differing)
    elif differing["equal"]:
        click.echo("equal")
    else:
        _print(differing)
    ctx.exit(0 if differing["equal"] else 1)


def _print(differing: Mapping[str, Any]) -> None:
    nodes, total = differing["nodes"], differing["bytes"]
    click.echo(f"bytes: {size(total['a'])} and {size(total['b'])}")
    click.echo(f"nodes: {nodes['a']} and {nodes['b']}")
    if differing["files"]:
        click.echo(f"files that differ: {', '.join(differing['files'])}")
    for name, pair in differing["techniques"].items():
        one, two = (_technique(pair[x], pair[y]) for x, y in ("ab", "ba"))
        click.echo(f"{name}: {one} and {two}")
    for key, pair in differing["gate"].items():
        click.echo(f"whole-model gate, {key}:")
        for side in "ab":
            click.echo(f"  {side.upper()}: {_gate(pair[side], side, differing['shown_by'])}")
    if differing["ops"]:
        rows = [(op, str(p["a"] or 0), str(p["b"] or 0)) for op, p in differing["ops"].items()]
        print_table(["op", ">A", ">B"], rows)
    if differing["sites"]:
        _print_sites(differing["sites"])


def _print_sites(sites: Mapping[str, Mapping[str, Any]]) -> None:
    from tamiz.api.site import Site, SiteKind

    rows = []
    for name, pair in sites.items():
        layer = (pair["a"] or pair["b"])["layer"]
        changed = _changed(pair["a"], pair["b"])
        cells = [_site(pair[side], changed) for side in "ab"]
        rows.append((Site(name, SiteKind.LINEAR, "", layer), tuple(cells)))
    print_table(["site", ">sites", "A", "B"], fold(rows))


def _changed(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> set[tuple[str, str]]:
    """Technique and field of what is configured in another way."""
    one, two = (entry["techniques"] if entry else {} for entry in (a, b))
    return {
        (name, field)
        for name in one.keys() & two.keys()
        for field in one[name]
        if one[name][field] != two[name].get(field)
    }


def _site(entry: Mapping[str, Any] | None, changed: set[tuple[str, str]]) -> str:
    if entry is None:
        return "—"
    parts = []
    for name, config in entry["techniques"].items():
        fields = [f"{key} {value}" for key, value in config.items() if (name, key) in changed]
        parts.append(" ".join([name, ", ".join(fields)]).strip())
    refused = f"; refused: {', '.join(entry['refused'])}" if entry["refused"] else ""
    return f"{' → '.join(parts) or 'dense'}, {size(entry['bytes'])}{refused}"


def _technique(entry: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> str:
    """Version of one side's technique, and the fields that the other side has otherwise."""
    if entry is None:
        return "absent"
    there = entry["config"] if other is None else other["config"]
    fields = [f"{k} {v}" for k, v in entry["config"].items() if v != there.get(k)]
    return ", ".join([f"version {entry['version']}", *fields])


def _gate(value: Any, side: str, losses: Mapping[str, str | None]) -> str:
    """One side of the gate; a result shows its own loss, and that of the other if it has both."""
    from tamiz.evaluation.judges import JUDGES

    if isinstance(value, Mapping):
        labels = {measure.name: measure.label for judge in JUDGES for measure in judge.measures}
        names = [name for name in dict.fromkeys(losses.values()) if name is not None]
        shown = [name for name in names if name == losses[side] or value[name] is not None]
        return ", ".join(loss_text(labels[name], value[name]) for name in shown)
    return "none" if value is None else str(value)
