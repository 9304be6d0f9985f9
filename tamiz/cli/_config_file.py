"""Options of a command from a TOML file: ``--config FILE``; flags win."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from tamiz.cli._options import FILE
from tamiz.files.errors import TamizError, did_you_mean

Command = TypeVar("Command", bound=Callable[..., Any])


def config_option(*renamed: tuple[str, str]) -> Callable[[Command], Command]:
    """An option that reads defaults of the other options from a TOML file.

    A key is an option's long name without dashes in front, such as ``max-queue``; an option that
    may be repeated takes a list. An argument has its name.

    Args:
        renamed: Names of keys and of the parameters that they mean.
    """
    return click.option(
        "--config",
        type=FILE,
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, _, path: None if path is None else _read(ctx, path, dict(renamed)),
        help="TOML file with options of this command, such as 'port = 8080'. Flags override it.",
    )


def _read(ctx: click.Context, path: Path, renamed: dict[str, str]) -> None:
    known = {_key(parameter): parameter for parameter in ctx.command.params}
    known |= {key: _named(ctx, name) for key, name in renamed.items()}
    known.pop("config")
    found: dict[str, Any] = {}
    for key, value in _parse(path).items():
        if key not in known:
            raise TamizError(
                f"{path}: unknown option {key!r}{did_you_mean(key, known)}; expected some of"
                f" {', '.join(sorted(known))}"
            )
        parameter = known[key]
        many = parameter.nargs == -1 or parameter.multiple
        if isinstance(value, dict) or isinstance(value, list) != many:
            expected = "a list" if many else "one value"
            raise TamizError(f"{path}: {key} is {value!r}, expected {expected}")
        assert parameter.name is not None
        found[parameter.name] = value
    ctx.default_map = {**(ctx.default_map or {}), **found}


def _parse(path: Path) -> dict[str, Any]:
    toml = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        parsed: dict[str, Any] = toml.loads(path.read_text("utf-8"))
    except OSError as error:
        raise TamizError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise TamizError(f"{path}: is no TOML: {error}") from error
    return parsed


def _key(parameter: click.Parameter) -> str:
    longest = max(parameter.opts, key=len)
    return longest.removeprefix("--")


def _named(ctx: click.Context, name: str) -> click.Parameter:
    return next(parameter for parameter in ctx.command.params if parameter.name == name)
