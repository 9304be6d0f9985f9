"""Options of commands that plan, most of them made from the installed techniques' declarations."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tamiz.files.errors import TamizError

if TYPE_CHECKING:
    from tamiz.api.technique import Technique
    from tamiz.planning.resolver import Choice
    from tamiz.plugins import Plugins

policy = click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What to do at which layer and tensor; see 'tamiz schema policy'.",
)

on_conflict = click.option(
    "--on-conflict",
    type=click.Choice(["error", "drop"]),
    default="error",
    show_default=True,
    help="What to do where techniques cannot act together; dropping keeps what was asked for "
    "before defaults, then the earlier name.",
)


def plugins(ctx: click.Context) -> Plugins:
    """The plugins, loaded once a command line; broken ones are named on stderr."""
    from tamiz.plugins import load

    key = "tamiz.plugins"
    if key not in ctx.meta:
        ctx.meta[key] = load()
        for plugin in ctx.meta[key].broken():
            click.echo(
                f"warning: plugin {plugin.name!r} is broken and skipped: {plugin.error}", err=True
            )
    loaded: Plugins = ctx.meta[key]
    return loaded


class TechniqueCommand(click.Command):
    """A command with a switch for every technique and an option for every field."""

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters and those of the techniques."""
        own = super().get_params(ctx)
        made = [o for t in plugins(ctx).techniques().values() for o in _options(t)]
        return [*own[:-1], *made, own[-1]]  # the last one is --help


def choices(ctx: click.Context, values: Mapping[str, Any]) -> list[Choice]:
    """The choices that the values of the techniques' options stand for.

    Setting a field switches its technique on. Where a field's flag is the technique's own switch,
    its values stand beside on and off, and none is another word for off.

    Raises:
        TamizError: A value outside of its range, or a field of a technique that is switched off.
    """
    from tamiz.planning.plan import choose, parse_value

    techniques = plugins(ctx).techniques()
    wanted: dict[str, dict[str, Any] | None] = {}
    for name, technique in techniques.items():
        switch = values[_key(name)]
        mode = _mode(technique)
        fields = {
            field: parse_value(text)
            for field in technique.config.model_fields
            if field != mode and (text := values[_key(name, field)]) is not None
        }
        if switch in ("off", "none") and fields:
            raise TamizError(
                f"{technique.flag(next(iter(fields)))} has no effect with --{name}={switch}"
            )
        if mode is not None and switch not in (None, "on", "off", "none"):
            fields[mode] = switch
        if switch is not None or fields:
            wanted[name] = None if switch in ("off", "none") else fields
    return choose(techniques, wanted)


def acts_on_steps_only(ctx: click.Context, names: Collection[str]) -> bool:
    """Whether one of the techniques acts on single-token steps only, or is not known here."""
    known = plugins(ctx).techniques() if names else {}
    return any(name not in known or known[name].decode_only for name in names)


def _key(technique: str, field: str = "") -> str:
    """Name under which click hands over an option's value; no command's own option has it."""
    return f"technique_{technique.replace('-', '_')}__{field}"


def _mode(technique: Technique) -> str | None:
    """The field of the configuration that the technique's own switch sets, if any."""
    fields = technique.config.model_fields
    return next((f for f in fields if technique.flag(f) == f"--{technique.name}"), None)


def _options(technique: Technique) -> list[click.Option]:
    state = "on" if technique.default else "off"
    schema = technique.config.model_json_schema()["properties"]
    mode = _mode(technique)
    modes = [] if mode is None else [*schema[mode]["enum"], "none"]
    switch = click.Option(
        [f"--{technique.name}", _key(technique.name)],
        type=click.Choice(["on", "off", *modes]),
        help=f"{technique.summary}  [default: {state}]",
    )
    fields = [
        click.Option(
            [technique.flag(field), _key(technique.name, field)],
            metavar=_range(schema[field]),
            help=f"{schema[field].get('description', '')}  "
            f"[default: {json.dumps(schema[field].get('default'))}]",
        )
        for field in technique.config.model_fields
        if field != mode
    ]
    return [switch, *fields]


def _range(schema: Mapping[str, Any]) -> str:
    """The values a field takes, as short as a help text wants them."""
    if "enum" in schema:
        return "[" + "|".join(str(value) for value in schema["enum"]) + "]"
    kind = str(schema.get("type", "value")).upper()
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        return kind
    return f"{kind} {'' if low is None else low}..{'' if high is None else high}"
