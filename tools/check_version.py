"""Checks that both distributions and the image have one version: `check_version.py 0.1.0`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_VERSION = r'^__version__ = "(.+)"'
#: The one place of each distribution's version, where builds read it, and what the image installs.
PLACES = {
    "tamiz/__init__.py": _VERSION,
    "ort_ops/tamiz_ops/__init__.py": _VERSION,
    "examples/deploy/Dockerfile": r"tamiz\[serve\]~=([\w.]+)",
}


def versions() -> dict[str, str]:
    """Returns the version that each file names."""
    found = {}
    for name, pattern in PLACES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        match = re.search(pattern, text, re.M)
        found[name] = match[1] if match else "none"
    return found


def main() -> None:
    """Exits with 1 and one line for each file that names another version."""
    expected = sys.argv[1] if len(sys.argv) > 1 else versions()[next(iter(PLACES))]
    wrong = {name: found for name, found in versions().items() if found != expected}
    if wrong:
        sys.exit("\n".join(f"{n}: found {v}, expected {expected}" for n, v in wrong.items()))
    print(expected)


if __name__ == "__main__":
    main()
