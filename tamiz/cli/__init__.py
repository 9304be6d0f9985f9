"""The command line: one command per file, imported only when it is needed.

Exit codes: 0 done; 1 internal error, no memory or space left, or what the command checks does not
hold; 2 bad input or
usage; 130 interrupted; 143 terminated, which cleans up as an interruption does.
"""

from __future__ import annotations

import errno
import importlib
import io
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

import click

from tamiz import __version__
from tamiz.files.errors import (
    NO_SPACE,
    LostWorkerError,
    NoSpaceError,
    TamizError,
    did_you_mean,
    printable,
)
from tamiz.platforms import ENDING, send_again

COMMANDS = (
    "export",
    "inspect",
    "pass",
    "calibrate",
    "plan",
    "build",
    "frontier",
    "explain",
    "diff",
    "run",
    "chat",
    "embed",
    "rerank",
    "serve",
    "eval",
    "bench",
    "demo",
    "plugins",
    "doctor",
    "schema",
    "help",
)


#: Interval at which a SIGTERM that waits for an import is delivered again.
_SECONDS_TO_WAIT = 0.02


class LazyGroup(click.Group):
    """Finds each command in the module of its name, and turns errors into exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order in which a new user needs them."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name; a mistyped name gets the closest one suggested."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            hint = did_you_mean(name, COMMANDS) or "; 'tamiz help' lists the commands"
            raise click.UsageError(f"No such command {name!r}{hint}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name in the module of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"tamiz.cli.{cmd_name}")
        commands = (value for value in vars(module).values() if isinstance(value, click.Command))
        return next(command for command in commands if command.name == cmd_name)

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> NoReturn:
        """Runs a command line and exits."""
        extra["standalone_mode"] = False
        try:
            _escape_what_cannot_be_written()
            _check_arguments(sys.argv[1:] if args is None else args)
            with _terminable():
                result = super().main(args, *more, **extra)
        except click.exceptions.NoArgsIsHelpError as error:  # its message is the help
            error.show()
            sys.exit(2)
        except click.ClickException as error:
            _fail(error.format_message())
        except (NoSpaceError, LostWorkerError) as error:
            _fail(str(error), 1)
        except TamizError as error:
            _fail(str(error))
        except MemoryError:
            _fail("there is not enough memory, or a limit (ulimit -v) is too low", 1)
        except OSError as error:  # no permission, no space
            named = error.filename is not None and error.strerror is not None
            code = 1 if error.errno in (*NO_SPACE, errno.ENOMEM) else 2
            _fail(f"{error.filename}: {error.strerror}" if named else str(error), code)
        except (click.Abort, KeyboardInterrupt):
            click.echo("interrupted", err=True)
            sys.exit(130)
        sys.exit(result if isinstance(result, int) else 0)


def _escape_what_cannot_be_written() -> None:
    """A character that the terminal's encoding lacks is printed as its number.

    Raises:
        TamizError: There is nowhere to print to.
    """
    if sys.stdout is None:
        raise TamizError("stdout is closed, expected a terminal, a file or a pipe")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _check_arguments(arguments: Sequence[str]) -> None:
    """Refuses paths that are not UTF-8, which neither JSON nor onnxruntime can hold."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise TamizError(f"{argument}: is not UTF-8, expected another name") from error


@contextmanager
def _terminable() -> Iterator[None]:
    """Lets SIGTERM unwind the stack, so that nothing half-written is left behind.

    A native module crashes where its import is broken off, so SIGTERM waits until no import runs.
    """

    def end(_: int, frame: FrameType | None) -> None:
        if _is_importing(frame):
            send_again(_SECONDS_TO_WAIT)
        else:
            sys.exit(128 + signal.SIGTERM)

    before = {number: signal.signal(number, end) for number in ENDING}
    try:
        yield
    finally:
        send_again(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported where a signal has interrupted the program."""
    while frame is not None and "importlib._bootstrap" not in frame.f_code.co_filename:
        frame = frame.f_back
    return frame is not None


def _fail(message: str, code: int = 2) -> NoReturn:
    click.echo(f"error: {printable(message)}", err=True)
    sys.exit(code)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="tamiz", message="%(prog)s %(version)s")
def main() -> None:
    """Make transformer models faster and smaller on CPUs, inside plain ONNX Runtime."""
