"""``tamiz plugins``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._output import Cell, print_json, print_table
from tamiz.cli._settings import by_standing
from tamiz.cli._techniques import installed

if TYPE_CHECKING:
    from tamiz.api.technique import Technique
    from tamiz.plugins import Plugin


@click.command("plugins")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the installed plugins.

    Shows for each plugin its distribution, its techniques with their claims, its exporters and
    graph passes, and why a broken plugin is skipped.
    """
    plugins = sorted(installed(ctx).installed, key=_rank)
    if as_json:
        print_json({"plugins": [_as_dict(plugin) for plugin in plugins]})
    else:
        print_table(
            ["plugin", "from", "offers"],
            [(p.name, f"{p.distribution} {p.version}".strip(), _offers(p)) for p in plugins],
        )


def _rank(plugin: Plugin) -> tuple[int, str]:
    """Plugins of recommended techniques first, those without techniques last."""
    from tamiz.api.technique import Standing

    standings = list(Standing)
    ranks = [standings.index(technique.standing) for technique in plugin.techniques]
    return min(ranks, default=len(standings)), plugin.name


def _as_dict(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "target": plugin.target,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "disabled": plugin.disabled,
        "error": plugin.error,
        "techniques": [
            {
                "name": technique.name,
                "version": technique.version,
                "summary": technique.summary,
                "standing": technique.standing.value,
                "pays": technique.pays,
                "default": technique.default,
                "claims": [
                    {
                        "resource": claim.resource.value,
                        "mode": claim.mode.value,
                        "order": claim.order,
                        "block": claim.block,
                    }
                    for claim in technique.claims
                ],
                "provides": sorted(technique.provides),
                "requires": sorted(technique.requires),
                "excludes": sorted(technique.excludes),
            }
            for technique in plugin.techniques
        ],
        "exporters": [exporter.name for exporter in plugin.exporters],
        "passes": [graph_pass.name for graph_pass in plugin.passes],
    }


def _offers(plugin: Plugin) -> Cell:
    if plugin.disabled:
        return "disabled by TAMIZ_DISABLE_PLUGINS"
    if plugin.error is not None:
        return f"broken: {plugin.error}"
    lines = [_describe(technique) for technique in by_standing(plugin.techniques)]
    if plugin.exporters:
        lines.append("exporters " + ", ".join(exporter.name for exporter in plugin.exporters))
    if plugin.passes:
        lines.append("graph passes " + ", ".join(p.name for p in plugin.passes))
    return tuple(lines) or "nothing"


def _describe(technique: Technique) -> str:
    claims = ", ".join(f"{c.resource.value} ({c.mode.value})" for c in technique.claims)
    text = f"technique {technique.name} {technique.version}, {technique.standing.value}"
    text += f": claims {claims or 'nothing'}"
    for word, names in (
        ("provides", technique.provides),
        ("requires", technique.requires),
        ("excludes", technique.excludes),
    ):
        if names:
            text += f"; {word} {', '.join(sorted(names))}"
    return text
