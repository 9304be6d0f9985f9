"""``tamiz help``."""

from __future__ import annotations

import click

from tamiz.cli._settings import write_techniques
from tamiz.cli._techniques import print_technique, recipe_flags, techniques
from tamiz.files.errors import TamizError, did_you_mean

_EXIT_CODES = (
    ("0", "The command is done."),
    ("1", "Internal error, no memory or space left, or what the command checks does not hold."),
    ("2", "Bad input or usage; stderr has one sentence that says what to change."),
    ("130", "Interrupted by Ctrl-C."),
    ("143", "Terminated by SIGTERM. Nothing half-written is left behind."),
)
_ENVIRONMENT = (
    ("TAMIZ_DISABLE_PLUGINS", "Names of plugins that are not loaded, separated by commas."),
    ("TAMIZ_ISA", "Instruction set of the kernels; the best one of this CPU is the default."),
    (
        "TAMIZ_SHARE",
        "1 maps a bundle's weights, so that processes share them; 0 reads them into large pages, "
        "which decode faster. By default they are mapped above half of the free memory.",
    ),
    ("TAMIZ_WITHOUT", "Default of --without: techniques of a bundle to switch off."),
    ("DASK_SCHEDULER_ADDRESS", "Cluster of 'tamiz build --backend=dask'."),
    (
        "XDG_CACHE_HOME",
        "Folder that holds the folder tamiz with the machine's profile and with what 'tamiz serve' "
        "built; ~/.cache is the default.",
    ),
)
_TOPICS = {
    "techniques": "What can be applied to a model, most useful first.",
    "recipes": "Measured combinations of techniques for --recipe.",
    "exit-codes": "Exit codes of every command.",
    "environment": "Environment variables that tamiz reads.",
}


@click.command("help")
@click.argument("topic", required=False, metavar="[TOPIC]")
@click.pass_context
def command(ctx: click.Context, topic: str | None) -> None:
    """Explain a command, a technique or a topic.

    TOPIC is a command, a technique such as kwta, or one of: techniques, recipes, exit-codes,
    environment. Without TOPIC the commands and topics are listed.
    """
    root = ctx.find_root()
    group = root.command
    assert isinstance(group, click.Group)
    if topic is None:
        click.echo(root.get_help())
        click.echo()
        _print("Topics", tuple(_TOPICS.items()))
    elif topic in group.list_commands(root):
        inner = group.get_command(root, topic)
        assert inner is not None
        with click.Context(inner, root, topic) as context:
            click.echo(inner.get_help(context))
    elif topic == "techniques":
        formatter = click.HelpFormatter(width=100)
        write_techniques(formatter, techniques(ctx).values())
        click.echo(formatter.getvalue(), nl=False)
    elif topic == "recipes":
        _print_recipes(ctx)
    elif topic == "exit-codes":
        _print("Exit codes", _EXIT_CODES)
    elif topic == "environment":
        _print("Environment variables", _ENVIRONMENT)
    else:
        _print_technique(ctx, topic, [*group.list_commands(root), *_TOPICS])


def _print_technique(ctx: click.Context, topic: str, others: list[str]) -> None:
    from tamiz.planning.choice import by_any_name

    by_name = by_any_name(techniques(ctx))
    name = topic.removeprefix("--")
    if name not in by_name:
        raise TamizError(
            f"help: {topic!r} is no command, technique or topic"
            + (did_you_mean(name, [*by_name, *others]) or "; try 'tamiz help'")
        )
    print_technique(by_name[name])


def _print_recipes(ctx: click.Context) -> None:
    from tamiz.cli._output import print_table
    from tamiz.planning.recipes import recipes

    rows = [
        (recipe.name, recipe.summary, recipe.pays, tuple(recipe_flags(ctx, recipe)))
        for recipe in recipes().values()
    ]
    print_table(["recipe", "what it does", "pays for", "flags"], rows)


def _print(title: str, rows: tuple[tuple[str, str], ...]) -> None:
    formatter = click.HelpFormatter(width=100)
    with formatter.section(title):
        formatter.write_dl(rows)
    click.echo(formatter.getvalue(), nl=False)
