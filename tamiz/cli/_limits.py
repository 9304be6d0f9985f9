"""Options that set limits, within which a build chooses formats and techniques."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import click
from click.core import ParameterSource

from tamiz.cli._techniques import plugins
from tamiz.files.errors import TamizError, did_you_mean

if TYPE_CHECKING:
    from tamiz.planning.allocation import Goal, Prefer

_POSITIVE = click.FloatRange(0, min_open=True)


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
            help="Smallest predicted decode speed, in tokens per second at a context of 128. The "
            "build chooses the formats with the least loss. Needs 'tamiz doctor --profile'.",
        ),
        click.option(
            "--prefer",
            type=click.Choice(["speed", "size", "quality"]),
            help="What a build within limits optimises.  [default: speed with a limit of quality, "
            "else quality]",
        ),
        click.option(
            "--allow",
            metavar="NAMES",
            help="What a build within limits chooses from, separated by commas: bits (weight "
            "formats).  [default: bits]",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def goal(
    ctx: click.Context,
    max_dppl: float | None,
    max_kl: float | None,
    max_mb: float | None,
    min_tok_s: float | None,
    prefer: str | None,
    allow: str | None,
    requested: bool,
) -> Goal | None:
    """The limits of a build; None where nothing is to be chosen within limits.

    --max-dppl alone is a limit unless something else decides: a policy, a recipe, a report,
    autotune, or requested techniques. It is no limit by default where another limit is given.

    Raises:
        TamizError: An option that makes no sense beside limits, or an unknown name.
    """
    from tamiz.planning.allocation import Goal

    others = (max_kl, max_mb, min_tok_s)
    given = ctx.get_parameter_source("max_dppl") is not ParameterSource.DEFAULT
    if all(value is None for value in (*others, prefer, allow)):
        decides = ("policy", "from_report", "recipe")
        decided = any(ctx.params.get(name) is not None for name in decides)
        if not given or max_dppl is None or decided or requested or ctx.params["autotune"] == "on":
            return None
    for name in ("policy", "from_report", "recipe"):
        if ctx.params.get(name) is not None:
            flag = name.replace("_", "-")
            raise TamizError(
                f"--{flag} decides formats and techniques, so limits such as --max-mb cannot choose"
                " them; remove one of the two"
            )
    if not given and any(value is not None for value in others):
        max_dppl = None
    offered = [name for name, t in plugins(ctx).techniques().items() if t.rungs is not None]
    names = tuple((allow or "bits").split(","))
    for name in names:
        if name not in ("bits", *offered):
            close = did_you_mean(name, ["bits", *offered])
            raise TamizError(f"--allow={name}: expected one of: bits, {', '.join(offered)}{close}")
    lossy = max_dppl is not None or max_kl is not None
    return Goal(
        max_dppl=max_dppl,
        max_kl=max_kl,
        max_bytes=None if max_mb is None else int(max_mb * 1e6),
        min_tok_s=min_tok_s,
        prefer=cast("Prefer", prefer or ("speed" if lossy else "quality")),
        allow=names,
    )
