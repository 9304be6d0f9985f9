"""The command line, run in this process."""

from click.testing import CliRunner, Result

from tamiz.cli import main


def tamiz(*arguments: object, stdin: str | None = None) -> Result:
    """What a command line prints, and its exit code."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)


def ok(*arguments: object) -> str:
    """The standard output of a command line that must succeed."""
    result = tamiz(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: object) -> str:
    """Runs what must be refused; returns the one sentence that says why."""
    result = tamiz(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")
