"""Options of the commands that plan; most of them are made from the techniques' declarations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tamiz.cli._options import FILE
from tamiz.cli._settings import policy_keys, settings, write_techniques
from tamiz.files.errors import TamizError, did_you_mean

if TYPE_CHECKING:
    from tamiz.api.technique import Technique
    from tamiz.planning.choice import Choice
    from tamiz.planning.recipes import Recipe
    from tamiz.plugins import Plugins

#: Values of a technique's switch that keep the technique out.
_OFF = ("off", "none")

policy = click.option(
    "--policy",
    type=FILE,
    help="JSON file that says which technique may act at which layer and tensor, with which "
    "settings. 'tamiz schema policy' prints its schema.",
)

on_conflict = click.option(
    "--on-conflict",
    type=click.Choice(["error", "drop"]),
    default="error",
    show_default=True,
    help="Reaction to techniques that cannot act together at a site. 'drop' keeps requested "
    "techniques before default ones, then the alphabetically first.",
)

recipe = click.option(
    "--recipe",
    metavar="NAME",
    help="Switch on a measured combination of techniques: exact, embed, fast, long-context, serve "
    "or small. Flags of techniques override it. See 'tamiz help recipes'.",
)


def plugins(ctx: click.Context) -> Plugins:
    """The plugins; broken ones are reported on stderr."""
    return _report_broken(ctx, installed(ctx))


def techniques(ctx: click.Context) -> dict[str, Technique]:
    """The techniques by name, for options and help; broken plugins are reported on stderr.

    Loads no exporters and graph passes, so that help appears quickly.
    """
    return _report_broken(ctx, installed(ctx, only_techniques=True)).techniques()


def installed(ctx: click.Context, only_techniques: bool = False) -> Plugins:
    """The plugins, loaded once per command line."""
    from tamiz.plugins import load

    key = f"tamiz.plugins, only_techniques={only_techniques}"
    if key not in ctx.meta:
        own_flags = _own_flags(ctx.find_root())
        ctx.meta[key] = load(own_flags=own_flags, only_techniques=only_techniques)
    loaded: Plugins = ctx.meta[key]
    return loaded


def _report_broken(ctx: click.Context, loaded: Plugins) -> Plugins:
    """Reports each broken plugin on stderr, once per command line."""
    reported = ctx.meta.setdefault("tamiz.broken", set())
    for plugin in loaded.broken():
        if plugin.name not in reported:
            reported.add(plugin.name)
            click.echo(
                f"warning: plugin {plugin.name!r} is broken and skipped: {plugin.error}", err=True
            )
    return loaded


def _own_flags(root: click.Context) -> set[str]:
    """Options of the commands themselves; no technique may declare one of them."""
    group = root.command
    if not isinstance(group, click.Group):
        return set()
    commands = (group.get_command(root, name) for name in group.list_commands(root))
    planning = (command for command in commands if isinstance(command, TechniqueCommand))
    return {flag for command in planning for flag in command.own_flags()}


class TechniqueCommand(click.Command):
    """A command with a switch for every technique and an option for every setting.

    The help lists one line per technique; `--help-technique` shows the settings of one.
    """

    def own_flags(self) -> set[str]:
        """Flags that no technique declares."""
        own = [*self.params, _help_technique(), click.Option(["--help"])]
        return {
            flag
            for parameter in own
            for flag in (*parameter.opts, *parameter.secondary_opts)
            if flag.startswith("--")
        }

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's own parameters and those of the techniques."""
        own = super().get_params(ctx)
        of_techniques = [o for t in techniques(ctx).values() for o in _options(t)]
        return [*own[:-1], _help_technique(), *of_techniques, own[-1]]  # the last one is --help

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments; a technique's switch without a value means ``on``."""
        return super().parse_args(ctx, _with_values(args, techniques(ctx)))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the command's own options, then one line per technique."""
        super().format_options(ctx, formatter)
        write_techniques(formatter, techniques(ctx).values(), "--")
        formatter.write_paragraph()
        formatter.write_text("'tamiz help NAME' shows all settings of one technique.")


def _with_values(args: list[str], techniques: Mapping[str, Technique]) -> list[str]:
    """Arguments in which a bare switch has the value ``on``.

    A switch is bare at the end, before another option, and before a path that exists: that is the
    command's own argument.
    """
    switches = {
        flag: _switch_values(technique)
        for technique in techniques.values()
        for flag in technique.accepted()[""]
    }
    complete: list[str] = []
    for index, argument in enumerate(args):
        if argument == "--":
            return complete + args[index:]
        value = args[index + 1] if index + 1 < len(args) else "--"
        bare = argument in switches and (
            value.startswith("-")
            or (value not in switches[argument] and os.path.exists(value))  # a name may be too long
        )
        complete.append(f"{argument}=on" if bare else argument)
    return complete


def choices(ctx: click.Context, values: Mapping[str, Any], name: str | None = None) -> list[Choice]:
    """The choices that a recipe and the values of the techniques' options make.

    Setting a field switches its technique on. Options override the recipe. A setting that shares
    the flag of the technique's switch adds its values to on and off.

    Args:
        ctx: The running command.
        values: Values by the name of the option, None where the option was not given.
        name: The recipe; None for no recipe.

    Raises:
        TamizError: An unknown recipe, a value outside of its range, or a setting of a technique
            that is switched off.
    """
    from tamiz.planning.plan import choose, parse_value

    installed_techniques = plugins(ctx).techniques()
    requested: dict[str, dict[str, Any] | None] = {}
    if name is not None:
        requested |= {key: dict(fields) for key, fields in find_recipe(name).techniques.items()}
    for key, technique in installed_techniques.items():
        switch = values[_key(key)]
        mode = _mode(technique)
        fields = {
            field: parse_value(text)
            for field in technique.accepted()
            if field and (text := values[_key(key, field)]) is not None
        }
        if switch in _OFF and fields:
            flag = technique.accepted()[next(iter(fields))][0]
            raise TamizError(f"{flag} has no effect with --{key}={switch}")
        if mode is not None and switch not in (None, "on", *_OFF):
            fields[mode] = switch
        if switch in _OFF:
            requested[key] = None
        elif switch is not None or fields:
            requested[key] = {**(requested.get(key) or {}), **fields}
    return choose(installed_techniques, requested)


def switched_off(ctx: click.Context, values: Mapping[str, Any]) -> frozenset[str]:
    """Names of the techniques whose switch is off; `values` as in `choices`."""
    return frozenset(name for name in plugins(ctx).techniques() if values[_key(name)] in _OFF)


def find_recipe(name: str) -> Recipe:
    """The recipe of that name.

    Raises:
        TamizError: There is none.
    """
    from tamiz.planning.recipes import recipes

    by_name = recipes()
    if name not in by_name:
        raise TamizError(
            f"--recipe={name}: unknown recipe, expected {', '.join(by_name)}"
            + did_you_mean(name, by_name)
        )
    return by_name[name]


def recipe_flags(ctx: click.Context, recipe: Recipe) -> list[str]:
    """The command-line options that a recipe sets."""
    by_name = techniques(ctx)
    flags = []
    for name, fields in recipe.techniques.items():
        if name in by_name:
            flags += [f"{by_name[name].flag(key)}={value}" for key, value in fields.items()]
        if name not in by_name or not fields:
            flags.append(f"--{name}")
    return [*flags, "--autotune=on"] if recipe.autotune else flags


def _key(technique: str, field: str = "") -> str:
    """Name under which click hands over an option's value; no command's own option has it."""
    return f"technique_{technique.replace('-', '_')}__{field}"


def _mode(technique: Technique) -> str | None:
    """The field of the configuration that the technique's own switch sets, if any."""
    fields = technique.config.model_fields
    return next((f for f in fields if technique.flag(f) == f"--{technique.name}"), None)


def _switch_values(technique: Technique) -> list[str]:
    """What the technique's switch takes."""
    mode = _mode(technique)
    if mode is None:
        return ["on", "off"]
    modes = technique.config.model_json_schema()["properties"][mode]["enum"]
    return ["on", "off", *modes, "none"]


def _options(technique: Technique) -> list[click.Option]:
    """The switch and the settings of a technique; hidden, as the help has one line for all.

    Each also takes its names of earlier versions.
    """
    schema = technique.config.model_json_schema()["properties"]
    options = []
    for field, flags in technique.accepted().items():
        effect = schema.get(field, {}).get("description", "A setting of earlier versions.")
        options.append(
            click.Option(
                [*flags, _key(technique.name, field)],
                type=click.STRING if field else click.Choice(_switch_values(technique)),
                help=effect if field else technique.summary,
                hidden=True,
            )
        )
    return options


def _help_technique() -> click.Option:
    def show(ctx: click.Context, _: click.Parameter, name: str | None) -> None:
        if name is not None and not ctx.resilient_parsing:
            try:
                technique = find_technique(ctx, name)
            except TamizError as error:
                raise TamizError(f"--help-technique: {error}") from error
            print_technique(technique)
            ctx.exit()

    return click.Option(
        ["--help-technique"],
        metavar="NAME",
        expose_value=False,
        is_eager=True,
        callback=show,
        help="Show all settings of one technique and exit.",
    )


def find_technique(ctx: click.Context, name: str) -> Technique:
    """The installed technique of that name; ``--kwta`` and ``kwta`` name the same one.

    Raises:
        TamizError: There is none.
    """
    from tamiz.planning.choice import by_any_name

    installed = techniques(ctx)
    by_name, plain = by_any_name(installed), name.removeprefix("--")
    if plain not in by_name:
        listed = ", ".join(installed) or "none"
        raise TamizError(
            f"unknown technique {plain!r}, installed: {listed}{did_you_mean(plain, by_name)}"
        )
    return by_name[plain]


def print_technique(technique: Technique) -> None:
    """Prints what a technique does, its flags, and the names of the keys that policies add."""
    click.echo(f"{technique.name}: {technique.summary}")
    click.echo(f"Standing: {technique.standing.value}. Pays: {technique.pays or 'not measured.'}")
    formatter = click.HelpFormatter(width=100)
    rows = [
        (setting.flag, f"{setting.effect}  [{setting.values}; default: {setting.default}]")
        for setting in settings(technique)
    ]
    formatter.write_paragraph()
    formatter.write_dl(rows)
    if keys := ", ".join(key.flag for key in policy_keys(technique)):
        formatter.write_paragraph()
        formatter.write_text(f"Policies can also set {keys}: docs/reference/techniques.md.")
    click.echo(formatter.getvalue().rstrip())
