"""Runs one benchmark, `python -m benchmarks NAME [options]`; without a name lists all.

`all` runs those of the page of results. A benchmark is a module of a room with a function or click
command `main`. Its name is the module's, with dashes, and its title the first line of its
docstring.
"""

from __future__ import annotations

import ast
import importlib
import sys
from functools import cache
from pathlib import Path

import click

from tamiz.files.errors import TamizError

#: Runs the others.
_ALL = "all"
ROOMS = ("engines", "quality", "techniques", "kernels", "serving")


@cache
def titles() -> dict[str, tuple[str, str]]:
    """The room and the title of every benchmark, by its name. Nothing is imported."""
    by_name = {}
    for room in ROOMS:
        for path in sorted((Path(__file__).parent / room).glob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
                title = (ast.get_docstring(tree) or "").partition("\n")[0]
                by_name[path.stem.replace("_", "-")] = (room, title)
    return by_name


def run(name: str, arguments: list[str]) -> None:
    """Runs a benchmark with its arguments.

    Raises:
        TamizError: There is no benchmark of this name.
    """
    known = titles()
    if name not in known and name != _ALL:
        raise TamizError(f"no benchmark {name!r}; `python -m benchmarks` lists them")
    place = name if name == _ALL else f"{known[name][0]}.{name.replace('-', '_')}"
    main = importlib.import_module(f"benchmarks.{place}").main
    program = f"python -m benchmarks {name}"
    sys.argv = [program, *arguments]
    main(prog_name=program) if isinstance(main, click.Command) else main()


def listing() -> str:
    """All benchmarks by room, one a line."""
    known = titles()
    width = max(map(len, known))
    lines = ["python -m benchmarks NAME [options]; NAME --help describes the options."]
    lines += ["", f"  {_ALL:{width}}  Runs those of the page of results, on one commit."]
    for room in ROOMS:
        rows = [f"  {n:{width}}  {title}" for n, (of, title) in known.items() if of == room]
        lines += ["", f"{room}:", *rows]
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
        print(listing())
    else:
        try:
            run(sys.argv[1], sys.argv[2:])
        except TamizError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
