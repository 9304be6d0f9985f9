"""Writes the reference pages from the declarations: `python tools/site/generate.py [--check]`.

docs/reference/ops.md from the native op table, techniques.md from the techniques' declarations,
interactions.md from what the resolver says of them, metrics.md from what both count, hooks.md from
the hook specifications, cli.md from the commands, policy.md from the JSON Schema, models.md and
sources.md from the tables of the exporters, graphs.md from the forms of graphs that tests declare,
plugins/ from the READMEs of the techniques, whose tables of flags it fills in, and
docs/background/requirements.md from docs/requirements.json. Nothing in them is written by hand, and
nothing may lack its description.
"""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import graphs_page
import interactions
import models_page
import requirements
import schema_page
import sources_page

import tamiz_ops
from tamiz.api import hookspecs
from tamiz.api.technique import Technique
from tamiz.cli import main as cli
from tamiz.cli._settings import by_standing, policy_keys, settings
from tamiz.planning.policy_schema import policy_model
from tamiz.plugins import load

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
PLUGINS = ROOT / "plugins"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; '' where it has no rows."""
    if not rows:
        return ""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in lines)


def section(title: str, body: str) -> str:
    """A titled part; '' where there is nothing to say."""
    return f"**{title}**\n\n{body}\n" if body else ""


def default(attribute: dict[str, object]) -> str:
    """The default of an op's attribute."""
    return "required" if attribute["required"] else str(attribute["default"])


def ops() -> str:
    """Every op of the domain `tamiz`, version 1."""
    parts = ["# Operators", "Domain `tamiz`, version 1."]
    for name, op in tamiz_ops.schemas().items():
        ports = [
            [f"`{p['name']}`" + (" (optional)" if p["optional"] else ""), p["type"], p["doc"]]
            for p in (*op["inputs"], *op["outputs"])
        ]
        attributes = [
            [
                f"`{a['name']}`",
                a["type"],
                "required" if a["required"] else str(a["default"]),
                a["doc"],
            ]
            for a in op["attributes"]
        ]
        metrics = [[f"`{m['name']}`", m["unit"], m["doc"]] for m in op["metrics"]]
        parts += [
            f"## {name}",
            op["doc"],
            section("Inputs and outputs", table(["name", "type", "meaning"], ports)),
            section("Attributes", table(["name", "type", "default", "meaning"], attributes)),
            section("Metrics", table(["name", "unit", "meaning"], metrics)),
        ]
    return "\n\n".join(part.strip() for part in parts if part)


def flags(*techniques: Technique) -> str:
    """The flags of techniques, in one table."""
    listed = [setting for technique in techniques for setting in settings(technique)]
    rows = [[f"`{s.flag}`", s.values, s.default, s.effect] for s in listed]
    return table(["setting", "values", "default", "effect"], rows)


def technique_page(technique: Technique) -> list[str]:
    """One technique: what it claims, its flags and metrics."""
    claims = [f"{claim.resource.value} ({claim.mode.value})" for claim in technique.claims]
    switch = "on" if technique.default else "off"
    facts = [
        ["acts on", ", ".join(sorted(kind.value for kind in technique.site_kinds))],
        ["claims", ", ".join(claims) or "nothing"],
        ["provides", ", ".join(sorted(technique.provides)) or "nothing"],
        ["requires", ", ".join(sorted(technique.requires)) or "nothing"],
        ["excludes", ", ".join(sorted(technique.excludes)) or "nothing"],
        ["by default", switch],
        ["standing", technique.standing.value],
        ["pays", technique.pays or "not said"],
    ]
    keys = [[f"`{s.flag}`", s.values, s.default, s.effect] for s in policy_keys(technique)]
    metrics = [[f"`{m.name}`", m.unit, m.description] for m in technique.metrics]
    return [
        f"## {technique.name} (version {technique.version})",
        technique.summary,
        table(["", ""], facts),
        section("Settings", flags(technique)),
        section("Keys for policies only", table(["key", "values", "default", "effect"], keys)),
        section("Metrics", table(["name", "unit", "meaning"], metrics)),
    ]


def techniques() -> str:
    """Every technique that is installed."""
    parts = ["# Techniques"]
    for technique in by_standing(load().techniques().values()):
        parts += technique_page(technique)
    return "\n\n".join(part.strip() for part in parts if part)


def metrics() -> str:
    """What techniques and operators count."""
    declared = load().techniques()
    own = [
        [f"`{m.name}`", t.name, m.unit, m.description]
        for t in by_standing(declared.values())
        for m in t.metrics
    ]
    counted = [
        [f"`{m['name']}`", f"[{name}](ops.md)", m["unit"], m["doc"]]
        for name, op in tamiz_ops.schemas().items()
        for m in op["metrics"]
    ]
    return "\n\n".join(
        [
            "# Metrics",
            "[Switch techniques off, and see what they do](../guides/switch-off-and-measure.md) "
            "says how metrics are printed and read.",
            "## Of techniques",
            table(["name", "technique", "unit", "meaning"], own),
            "## Of operators",
            "Sums over all runs of a session, by node and layer.",
            table(["name", "operator", "unit", "meaning"], counted),
        ]
    )


def with_flags(page: str) -> str:
    """A plugin's page with the tables of the techniques that its markers name."""
    known = load().techniques()

    def tables(marker: re.Match[str]) -> str:
        found = flags(*(known[name] for name in marker[1].split()))
        return f"<!-- flags: {marker[1]} -->\n{found}\n<!-- end of flags -->"

    return re.sub(r"<!-- flags: (.+) -->\n(?s:.*?)<!-- end of flags -->", tables, page)


def plugin_pages() -> dict[str, str]:
    """A page of the site for the README of each plugin."""
    pages = {}
    for readme in sorted(PLUGINS.glob("tamiz_*/README.md")):
        name = readme.parent.name.removeprefix("tamiz_")
        source = f"../../../plugins/{readme.parent.name}/README.md"
        pages[f"plugins/{name}.md"] = f"```{{include}} {source}\n:relative-docs: ../\n```"
    links = "\n".join(name.removeprefix("plugins/").removesuffix(".md") for name in pages)
    pages["plugins/index.md"] = (
        "# Techniques in depth\n\nEach page says how one plugin works, what it measured and what "
        f"it loses.\n\n```{{toctree}}\n:maxdepth: 1\n\n{links}\n```"
    )
    return pages


def contexts() -> Iterator[tuple[str, click.Context]]:
    """Every command by its name, in the context in which the command line runs it."""
    with click.Context(cli, info_name="tamiz", **cli.context_settings) as outer:
        for name in cli.list_commands(outer):
            command = cli.get_command(outer, name)
            with click.Context(command, outer, name, max_content_width=100) as inner:
                yield name, inner


def commands() -> str:
    """Every command with its help."""
    parts = ["# Command line", (cli.help or "").strip()]
    for name, context in contexts():
        parts += [f"## tamiz {name}", "```text\n" + context.get_help().strip() + "\n```"]
    return "\n\n".join(parts)


def hooks() -> str:
    """Every hook that a plugin can implement."""
    parts = ["# Hooks", (hookspecs.__doc__ or "").strip()]
    for name, hook in _hooks().items():
        parts += [f"## {name}", f"```python\n{name}{inspect.signature(hook)}\n```"]
        parts.append(inspect.getdoc(hook) or "")
    return "\n\n".join(parts)


def _hooks() -> dict[str, Callable[..., Any]]:
    return {name: hook for name, hook in vars(hookspecs).items() if name.startswith("tamiz_")}


def undocumented() -> list[str]:
    """What lacks a description: hooks, commands, flags, fields, metrics, ops and what they have."""
    found = [f"hook {name}" for name, hook in _hooks().items() if not inspect.getdoc(hook)]
    for technique in load().techniques().values():
        who = technique.name
        described = {f"technique {who}": technique.summary}
        for name, info in technique.config.model_fields.items():
            described[f"flag {technique.flag(name)}"] = info.description or ""
        described |= {f"metric {m.name}": m.description and m.unit for m in technique.metrics}
        found += [name for name, text in described.items() if not text]
    for name, op in tamiz_ops.schemas().items():
        parts = [op, *op["inputs"], *op["outputs"], *op["attributes"], *op["metrics"]]
        found += [f"op {name}: {part.get('name', 'doc')}" for part in parts if not part["doc"]]
    for name, context in contexts():
        found += [] if context.command.help else [f"command {name}"]
        found += [
            f"option {option.opts[0]} of {name}"
            for option in context.command.get_params(context)
            if isinstance(option, click.Option) and not option.help
        ]
    return found


def main() -> None:
    """Writes the pages, or with --check says which are not current."""
    if lacking := undocumented():
        sys.exit(f"not documented: {', '.join(lacking)}")
    pages = {
        "ops.md": ops(),
        "techniques.md": techniques(),
        "interactions.md": interactions.page(load().techniques()),
        "../background/requirements.md": requirements.page(table),
        "hooks.md": hooks(),
        "cli.md": commands(),
        "metrics.md": metrics(),
        "models.md": models_page.page(table),
        "sources.md": sources_page.page(table),
        "graphs.md": graphs_page.page(table),
        "policy.md": schema_page.page(policy_model(load().techniques()).model_json_schema(), table),
        **plugin_pages(),
        **{
            f"../../plugins/{readme.parent.name}/README.md": with_flags(readme.read_text("utf-8"))
            for readme in PLUGINS.glob("tamiz_*/README.md")
        },
    }
    (PAGES / "plugins").mkdir(parents=True, exist_ok=True)
    stale = []
    for name, text in pages.items():
        path = PAGES / name
        text = text.rstrip("\n") + "\n"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv and stale:
        sys.exit(f"not current, run python tools/site/generate.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
