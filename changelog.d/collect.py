"""Moves the fragments into CHANGELOG.md: `python changelog.d/collect.py VERSION [--dry-run]`."""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

HERE = Path(__file__).parent
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
HEAD = "# Changelog\n"


def fragments(folder: Path) -> dict[str, list[Path]]:
    """The fragments of a folder by kind.

    Raises:
        ValueError: A file whose name has no kind.
    """
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in sorted(folder.glob("*.md")):
        if path.name == "README.md":
            continue
        kind = path.stem.rpartition(".")[2]
        if kind not in found:
            raise ValueError(f"{path.name}: kind is {kind!r}, expected one of {', '.join(KINDS)}")
        found[kind].append(path)
    return {kind: paths for kind, paths in found.items() if paths}


def entry(version: str, day: datetime.date, found: dict[str, list[Path]]) -> str:
    """The section of a version."""
    parts = [f"## {version} ({day.isoformat()})"]
    for kind, paths in found.items():
        lines = [path.read_text("utf-8").strip().replace("\n", "\n  ") for path in paths]
        parts += [f"### {kind.capitalize()}", "\n".join(f"- {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def with_section(text: str, version: str, day: datetime.date, found: dict[str, list[Path]]) -> str:
    """A changelog with the section of a version.

    Where the version's section is headed `(unreleased)`, it gets the day and what was added since:
    the first release has nothing that it changes or fixes.
    """
    heading = f"## {version} (unreleased)"
    if heading not in text:
        return HEAD + "\n" + entry(version, day, found) + text.removeprefix(HEAD)
    lines = entry(version, day, {"added": found.get("added", [])}).splitlines(keepends=True)
    return text.replace(heading, lines[0].strip()) + "".join(lines[4:])


def main() -> None:
    """Writes the changelog, or prints it with --dry-run."""
    if len(sys.argv) < 2:
        sys.exit("usage: python changelog.d/collect.py VERSION [--dry-run]")
    found = fragments(HERE)
    day = datetime.datetime.now(datetime.timezone.utc).date()
    changelog = HERE.parent / "CHANGELOG.md"
    made = with_section(changelog.read_text("utf-8"), sys.argv[1], day, found)
    if "--dry-run" in sys.argv:
        print(made)
        return
    changelog.write_text(made, "utf-8")
    for path in (path for paths in found.values() for path in paths):
        path.unlink()


if __name__ == "__main__":
    main()
