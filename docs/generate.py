"""Writes the reference pages from the declarations: `python docs/generate.py [--check]`.

docs/reference/ops.md from the native op table, docs/reference/techniques.md from the techniques'
declarations, docs/reference/cli.md from the commands. Nothing in them is written by hand.
"""

import sys
from pathlib import Path

import click

import tamiz_ops
from tamiz.cli import main as cli
from tamiz.plugins import load
from tamiz.technique import Technique

PAGES = Path(__file__).parent / "reference"


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


def technique_page(technique: Technique) -> list[str]:
    """One technique: what it claims, its flags and metrics."""
    claims = [f"{claim.resource.value} ({claim.mode.value})" for claim in technique.claims]
    switch = "on" if technique.default else "off"
    facts = [
        ["acts on", ", ".join(sorted(kind.value for kind in technique.site_kinds))],
        ["claims", ", ".join(claims) or "nothing"],
        ["provides", ", ".join(sorted(technique.provides)) or "nothing"],
        ["requires", ", ".join(sorted(technique.requires)) or "nothing"],
        ["by default", switch],
    ]
    flags = [
        [f"`--{technique.name}=on|off`", "on" if technique.default else "off", technique.summary]
    ]
    flags += [
        [f"`{technique.flag(name)}`", str(info.default), info.description or ""]
        for name, info in technique.config.model_fields.items()
    ]
    metrics = [[f"`{m.name}`", m.unit, m.description] for m in technique.metrics]
    return [
        f"## {technique.name} (version {technique.version})",
        technique.summary,
        table(["", ""], facts),
        section("Flags", table(["flag", "default", "meaning"], flags)),
        section("Metrics", table(["name", "unit", "meaning"], metrics)),
    ]


def techniques() -> str:
    """Every technique that is installed."""
    parts = ["# Techniques"]
    for technique in load().techniques().values():
        parts += technique_page(technique)
    return "\n\n".join(part.strip() for part in parts if part)


def commands() -> str:
    """Every command with its help."""
    parts = ["# Command line", (cli.help or "").strip()]
    with click.Context(cli, info_name="tamiz") as context:
        for name in cli.list_commands(context):
            command = cli.get_command(context, name)
            with click.Context(command, info_name=f"tamiz {name}", max_content_width=100) as inner:
                parts += [
                    f"## tamiz {name}",
                    "```text\n" + command.get_help(inner).strip() + "\n```",
                ]
    return "\n\n".join(parts)


def main() -> None:
    """Writes the pages, or with --check tells which are not current."""
    pages = {"ops.md": ops(), "techniques.md": techniques(), "cli.md": commands()}
    PAGES.mkdir(exist_ok=True)
    stale = []
    for name, text in pages.items():
        path = PAGES / name
        if not path.exists() or path.read_text(encoding="utf-8") != text + "\n":
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text + "\n", encoding="utf-8")
    if "--check" in sys.argv and stale:
        sys.exit(f"not current, run python docs/generate.py: {', '.join(stale)}")


if __name__ == "__main__":
    main()
