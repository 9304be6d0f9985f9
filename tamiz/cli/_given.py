"""Which options the caller has set, and the refusal of those that would have no effect."""

from __future__ import annotations

import click
from click.core import ParameterSource

from tamiz.files.errors import TamizError


def is_given(ctx: click.Context, name: str) -> bool:
    """Whether an option was set by the caller."""
    return ctx.get_parameter_source(name) is not ParameterSource.DEFAULT


def refuse_given(ctx: click.Context, *names: str, where: str, other: str) -> None:
    """Refuses options that would have no effect.

    An option that is ``off`` by default may be set to ``off``.

    Args:
        ctx: The running command.
        *names: Parameters of the command.
        where: Where they have no effect: ``with --sweep``.
        other: What else than a removal helps: ``--sweep``, which may go instead, or ``add --text``.

    Raises:
        TamizError: One of them is given.
    """
    options = {option.name: option for option in ctx.command.params}
    for name in names:
        option, value = options[name], ctx.params[name]
        if is_given(ctx, name) and not value == option.default == "off":
            flags = option.secondary_opts if value is False else option.opts
            flag = next(flag for flag in flags if flag.startswith("--"))
            raise TamizError(f"{flag} has no effect {where}; remove {flag} or {other}")
