"""``tamiz explain``."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from tamiz.cli._output import fold, print_json, print_table, size

_NUMBER = re.compile(r"\d[\d.]*")


@click.command("explain")
@click.argument("directory", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.argument("site", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the explanation as JSON.")
def command(directory: Path, site: str | None, as_json: bool) -> None:
    """Show why a built bundle is what it is.

    For SITE: where every setting comes from, what the gates measured, what was tried, what was
    backed off, what stood against it. Without SITE one line a site. Reads the bundle's report.
    """
    from tamiz.files.bundle import Bundle
    from tamiz.reporting.explain import explain, overview, reading

    with reading(Bundle.open(directory)) as report:
        found = overview(report) if site is None else explain(report, site)
        if as_json:
            print_json(found)
        elif site is None:
            _print_overview(found)
        else:
            _print_site(found)


def _print_overview(found: Mapping[str, Any]) -> None:
    click.echo(f"{found['source']}, policy {found['build']['policy_hash'][:16]}")
    _print_sites(found["sites"])
    _print_gate(found["gate"])
    for conflict in found["conflicts"]:
        click.echo(f"conflict: {conflict['reason']}")
    for drop in found["dropped"]:
        click.echo(f"dropped: {drop['technique']} at {drop['site']}")
    if found["notes"]:
        notes = [(note["pass_name"], note["reason"]) for note in found["notes"]]
        print_table(["pass", ">nodes", "left as it was because"], _alike(notes))


def _print_sites(entries: Sequence[Mapping[str, Any]]) -> None:
    """What stands where, and why."""
    from tamiz.api.site import Site, SiteKind

    rows = []
    for entry in entries:
        site = Site(entry["site"], SiteKind(entry["kind"]), "", entry["layer"])
        rows.append((site, (" → ".join(entry["techniques"]) or "dense", size(entry["bytes"]))))
    print_table(["site", ">sites", "techniques", ">bytes each"], fold(rows))
    reasons = [(entry["judged"] or "", entry["reason"]) for entry in entries]
    print_table(["judged by", ">sites", "because"], _alike(reasons))


def _alike(rows: Sequence[tuple[str, str]]) -> list[tuple[str, str, str]]:
    """Joins rows whose sentences differ in numbers only; the first one stands for all."""
    counts = Counter((name, _NUMBER.sub("", text)) for name, text in rows)
    first = {(name, _NUMBER.sub("", text)): text for name, text in reversed(rows)}
    return [(key[0], str(count), first[key]) for key, count in counts.items()]


def _print_gate(gate: Mapping[str, Any]) -> None:
    if gate["skipped"]:
        click.echo(f"whole-model gate: not run, {gate['skipped']}")
        return
    result = gate["result"]
    built = f"built: {result['dppl']}" if result else "nothing that loses anything was left"
    click.echo(f"whole-model gate: Δppl at most {gate['max_dppl']}, {built}")


def _print_site(found: Mapping[str, Any]) -> None:
    n, k = found["shape"]
    shape = f", {n} × {k}" if n else ""
    before, after = size(found["bytes_before"]), size(found["bytes_after"])
    click.echo(f"{found['site']}: {found['kind']}{shape}, {before} → {after}")
    stays = "" if found["decision"]["emit"] else "stays dense: "
    click.echo(f"{stays}{found['decision']['reason']}")
    for entry in found["techniques"]:
        rows = [(f, _told(v), entry["config_from"][f]) for f, v in entry["config"].items()]
        print_table([entry["name"], "value", "comes from"], rows)
    if origins := found["resolved"]["policy_from"]:
        rows = [(key, str(_at(found["resolved"]["policy"], key)), origins[key]) for key in origins]
        print_table(["policy", "value", "comes from"], rows)
    _print_gating(found["gating"])
    _print_attempts(found["autotune"])
    for trial in found["backed_off"]:
        click.echo(
            f"backed off with {len(trial['refused']) - 1} others: Δppl {trial['predicted']} "
            f"predicted, {trial['dppl']} measured without them"
        )
    for conflict in found["conflicts"]:
        click.echo(f"conflict: {conflict['reason']}; {' or '.join(conflict['remedies'])}")
    for name in found["dropped"]:
        click.echo(f"dropped: {name}")
    for note in found["notes"]:
        click.echo(f"left as it was by {note['pass_name']}: {note['reason']}")


def _at(entry: Any, key: str) -> Any:
    """Value of a dotted key; keys hold no dots."""
    for part in key.split("."):
        entry = entry[part]
    return entry


def _print_gating(gating: Mapping[str, Any]) -> None:
    if gating["judged"] is None:
        return
    asked = f" in place of {gating['metric']}" if gating["fallback"] else ""
    least = [("mean", gating["min_mean"]), ("p05", gating["min_p05"])]
    parts = [
        f"{name} {_number(gating[name])}" + ("" if low is None else f" (at least {low})")
        for name, low in least
        if gating[name] is not None
    ]
    verdict = "passed" if gating["pass"] else "refused"
    click.echo(f"gate {verdict}: {gating['judged']}{asked}")
    click.echo(f"  {', '.join(parts)}")


def _print_attempts(autotune: Mapping[str, Any]) -> None:
    attempts = autotune["attempts"]
    if len(attempts) < 2:
        return
    changed = {
        name
        for attempt in attempts
        for name, value in attempt["config"].items()
        if any(other["config"].get(name, value) != value for other in attempts)
    }
    rows = [
        (
            a["technique"],
            ", ".join(f"{name} {a['config'][name]}" for name in a["config"] if name in changed),
            size(a["bytes"]),
            "passed" if a["pass"] else a["reason"],
        )
        for a in attempts
    ]
    print_table(["attempt", "with", ">bytes", "result"], rows)


def _told(value: object) -> str:
    return "–" if value is None else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.5f}"
