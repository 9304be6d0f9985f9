"""Code blocks of Markdown pages, and how a reader runs them."""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.command_line import tamiz

#: Languages of the blocks that are executed.
LANGUAGES = ("console", "python", "json")
_BLOCK = re.compile(
    r"^(?:<!-- (?P<key>not run|file): (?P<value>[^>]*?) -->\n\s*)?```(?P<language>\w+)\n"
    r"(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Attributes:
        line: Line of the page where the block begins.
        language: ``console``, ``python`` or ``json``.
        code: Its text.
        reason: Why it is not run; None if it is run.
        file: Name under which a reader saves it; None if the page does not name one.
    """

    line: int
    language: str
    code: str
    reason: str | None
    file: str | None


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are executed, or say why not."""
    text = page.read_text("utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        if match["language"] in LANGUAGES:
            notes = {match["key"]: match["value"]}
            why, file = notes.get("not run"), notes.get("file")
            line = text.count("\n", 0, match.start("language")) + 1
            found.append(Block(line, match["language"], match["code"], why, file))
    return found


def commands(code: str) -> Iterator[str]:
    """The lines of a console block that a reader types, without their prompt."""
    for line in code.replace("\\\n", " ").splitlines():
        if line.startswith("$ "):
            yield line.removeprefix("$ ")


class Reader:
    """Runs the blocks of one page in one folder, one after the other."""

    def __init__(self, folder: Path) -> None:
        """Begins in a folder that holds what the pages name."""
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__page__"}

    def run(self, block: Block) -> None:
        """Runs a block; raises if a command fails, if code raises, or if JSON is invalid."""
        if block.file is not None:
            (self.folder / block.file).write_text(block.code, "utf-8")
        with _within(self.folder):
            if block.language == "json":
                json.loads(block.code)
            elif block.language == "python":
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(block.code, f"line {block.line}", "exec"), self.names)
            else:
                for command in commands(block.code):
                    _execute(command)


def _execute(command: str) -> None:
    """Runs a command: tamiz in this process, everything else in a shell."""
    words = shlex.split(command, comments=True)
    if words[0] == "tamiz" and not set(words) & {"<", ">", "|", "&&"}:
        done = tamiz(*words[1:])
        assert done.exit_code == 0, f"{command}\n{done.output}\n{done.stderr}"
        return
    folder = str(Path(sys.executable).parent)
    environment = os.environ | {"PATH": folder + os.pathsep + os.environ["PATH"]}
    shell = subprocess.run(
        ["bash", "-c", command], env=environment, capture_output=True, text=True, check=False
    )
    assert shell.returncode == 0, f"{command}\n{shell.stdout}\n{shell.stderr}"


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
