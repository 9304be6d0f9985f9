"""Options that set limits, within which a build chooses formats and techniques."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import click

from tamiz.cli._options import Number, is_given, refuse_given
from tamiz.cli._techniques import plugins
from tamiz.files.errors import TamizError, did_you_mean

if TYPE_CHECKING:
    from tamiz.api.technique import Technique
    from tamiz.planning.choice import Choice
    from tamiz.planning.goal import Goal, Prefer

#: A loss, a size in MB or a speed; no machine has a petabyte, 10⁹ MB.
_POSITIVE = Number(0, 10**9, min_open=True)
#: Options of which each makes a build choose within limits; the first three are limits themselves.
_CHOOSING = ("max_kl", "max_mb", "min_tok_s", "prefer", "allow", "force")

#: Options that decide formats and techniques themselves.
_DECIDING = ("policy", "from_report", "recipe")


def limits(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of `goal`."""
    options = [
        click.option(
            "--max-kl",
            type=_POSITIVE,
            help="Largest accepted mean KL divergence from SRC on the calibration text, in nats "
            "per token. The build chooses a weight format for each site within this limit.",
        ),
        click.option(
            "--max-mb",
            type=_POSITIVE,
            help="Largest size of the model's constants, in MB of 10^6 bytes. The build chooses "
            "the weight formats with the least loss within this limit.",
        ),
        click.option(
            "--min-tok-s",
            type=_POSITIVE,
            help="Smallest predicted decode speed, in tokens per second at --context. The "
            "build chooses the formats with the least loss. Needs 'tamiz doctor --profile'.",
        ),
        click.option(
            "--prefer",
            type=click.Choice(["speed", "size", "quality"]),
            help="What a build within limits optimises; for an encoder, speed means size.  "
            "[default: speed with a limit of quality, else quality]",
        ),
        click.option(
            "--allow",
            metavar="NAMES",
            help="What a build within limits chooses from, separated by commas: bits (weight "
            "formats), or names of techniques such as kwta, head-shortlist, kv-int8, state-pack.  "
            "[default: bits, and requested techniques that act on weights]",
        ),
        click.option(
            "--force",
            metavar="NAMES",
            help="Techniques, separated by commas, that a build within limits applies also where "
            "they make the model neither smaller nor faster.",
        ),
        click.option(
            "--context",
            type=click.IntRange(1),
            default=128,
            show_default=True,
            help="Context length, in tokens, at which a build within limits predicts decode speed.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def goal(
    ctx: click.Context,
    max_dppl: float | None,
    min_cosine: float | None,
    choices: Sequence[Choice],
) -> Goal | None:
    """The limits of a build; None where nothing is to be chosen within limits.

    --max-dppl or --min-cosine alone is a limit unless something else decides: a policy, a recipe, a
    report, autotune, or a requested technique that is not chosen from. By default they are no limit
    where another limit is given.

    Args:
        ctx: The running command.
        max_dppl: The value of --max-dppl, or of a recipe.
        min_cosine: The value of --min-cosine.
        choices: The techniques of the flags.

    Raises:
        TamizError: An option that makes no sense beside limits or without them, or an unknown name.
    """
    from tamiz.planning.goal import Goal

    given, techniques = ctx.params, plugins(ctx).techniques()
    choosing = [name for name in _CHOOSING if given[name] is not None]
    budgets = {"max_dppl": max_dppl, "min_cosine": min_cosine}
    budgets = {name: value for name, value in budgets.items() if is_given(ctx, name)}
    ours = [choice.technique.name for choice in choices if choice.requested and _offers(choice)]
    if not choosing:
        decided = any(given[name] is not None for name in _DECIDING)
        fixed = given["autotune"] == "on" or any(
            choice.requested and choice.technique.name not in ours for choice in choices
        )
        if all(value is None for value in budgets.values()) or decided or fixed:
            other = "add a limit such as --max-kl"
            refuse_given(ctx, "context", where="where no limit chooses formats", other=other)
            return None
    _refuse_beside_limits(ctx, choosing)
    if not budgets and not set(choosing) & set(_CHOOSING[:3]):
        budgets = {"max_dppl": max_dppl, "min_cosine": min_cosine}
    lossy = any(value is not None for value in (*budgets.values(), given["max_kl"]))
    allow = allowed("allow", given["allow"], techniques)
    return Goal(
        max_dppl=budgets.get("max_dppl"),
        min_cosine=budgets.get("min_cosine"),
        max_kl=given["max_kl"],
        max_bytes=None if given["max_mb"] is None else int(given["max_mb"] * 1e6),
        min_tok_s=given["min_tok_s"],
        prefer=cast("Prefer", given["prefer"] or ("speed" if lossy else "quality")),
        allow=allow or ("bits", *ours),
        force=allowed("force", given["force"], techniques),
        context=given["context"],
    )


def _refuse_beside_limits(ctx: click.Context, choosing: Sequence[str]) -> None:
    """Refuses options that decide formats beside limits, or have no effect there.

    Args:
        ctx: The running command.
        choosing: Parameters that make the build choose.
    """
    for name in _DECIDING:
        if ctx.params[name] is not None:
            flag = name.replace("_", "-")
            raise TamizError(
                f"--{flag} decides formats and techniques, so limits such as --max-mb cannot choose"
                " them; remove one of the two"
            )
    if choosing:
        flag = "--" + choosing[0].replace("_", "-")
        where = f"with {flag}, which chooses formats"
        refuse_given(ctx, "autotune", where=where, other=flag)


def _offers(choice: Choice) -> bool:
    """Whether the technique acts on weights and leaves its strength to the build.

    A technique that acts on attentions pays at long contexts, so a request for it is followed.
    """
    technique = choice.technique
    on_weights = any(kind.value in ("linear", "head") for kind in technique.site_kinds)
    return technique.options is not None and on_weights and choice.config == technique.config()


def allowed(option: str, text: str | None, techniques: Mapping[str, Technique]) -> tuple[str, ...]:
    """The names that an option lists; none where it is not given.

    Raises:
        TamizError: One of them offers nothing to choose from.
    """
    expected = ["bits", *(name for name, t in techniques.items() if t.options is not None)]
    names = tuple(text.split(",")) if text is not None else ()
    for name in names:
        if name not in expected:
            close = did_you_mean(name, expected)
            raise TamizError(f"--{option}={name}: expected one of: {', '.join(expected)}{close}")
    return names
