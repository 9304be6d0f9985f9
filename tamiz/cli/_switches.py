"""``--without``: techniques that a command switches off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Function = TypeVar("Function", bound=Callable[..., Any])


class Techniques(click.ParamType):  # type: ignore[type-arg]  # generic in new versions only
    """Names of techniques, ``kwta,win-attn``."""

    name = "techniques"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Parses the list."""
        if isinstance(value, tuple):
            return value
        names = tuple(name.strip() for name in str(value).split(",")) if value else ()
        if not all(names):
            self.fail(f"{value!r} has an empty name, expected a list such as kwta,win-attn")
        return names


def without_option(function: Function) -> Function:
    """Adds ``--without`` to a command that runs a bundle."""
    return click.option(
        "--without",
        type=Techniques(),
        default=(),
        envvar="TAMIZ_WITHOUT",
        show_envvar=True,
        metavar="NAME,…",
        help="Techniques of DIR to switch off: the command computes what a bundle without them "
        "computes.",
    )(function)
