"""The command line, run in this process."""

from pathlib import Path

from click.testing import CliRunner, Result

from tamiz.cli import main


def tamiz(*arguments: str | Path) -> Result:
    """What a command line prints, and its exit code."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def ok(*arguments: str | Path) -> str:
    """The standard output of a command line that must succeed."""
    result = tamiz(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout
