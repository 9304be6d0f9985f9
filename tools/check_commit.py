"""Checks the message of a commit: `check_commit.py FILE`, a commit-msg hook of Git.

A title of at most 72 characters about one topic, a blank line, and a body that says why.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TITLE = 72
#: What git itself writes, and commits that a later rebase folds into another.
_EXEMPT = re.compile(r"(Merge|Revert|fixup!|squash!|amend!) ")
_SCISSORS = "# ------------------------ >8 ------------------------"
_TRAILER = re.compile(r"[A-Za-z-]+: \S")


def faults(message: str) -> list[str]:
    """What is wrong with a message; empty where nothing is."""
    text = message.partition(_SCISSORS)[0]
    lines = [line.rstrip() for line in text.splitlines() if not line.startswith("#")]
    title, *rest = "\n".join(lines).strip().split("\n")
    if _EXEMPT.match(title):
        return []
    found = []
    if len(title) > TITLE:
        found.append(f"title: found {len(title)} characters, expected at most {TITLE}")
    if "; " in title:
        found.append('title: found "; ", expected one topic; make a commit of each')
    if title.endswith("."):
        found.append("title: found a full stop at its end, expected none")
    if rest and rest[0]:
        found.append("line 2: found text, expected a blank line after the title")
    if not any(line and not _TRAILER.match(line) for line in rest):
        found.append("body: found none, expected a sentence that says why")
    return found


def main() -> None:
    """Exits with 1 and one line for each fault."""
    found = faults(Path(sys.argv[1]).read_text("utf-8"))
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
