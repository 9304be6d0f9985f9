"""Checks that both distributions and both packages have one version: `check_version.py 0.1.0`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Where a version is written, by the pattern that finds it.
PLACES = {
    "pyproject.toml": r'^version = "(.+)"',
    "ort_ops/pyproject.toml": r'^version = "(.+)"',
    "tamiz/__init__.py": r'^__version__ = "(.+)"',
    "ort_ops/tamiz_ops/__init__.py": r'^__version__ = "(.+)"',
}


def versions() -> dict[str, str]:
    """Returns the version that each file names."""
    found = {}
    for name, pattern in PLACES.items():
        match = re.search(pattern, (ROOT / name).read_text(encoding="utf-8"), re.M)
        found[name] = match[1] if match else "none"
    return found


def main() -> None:
    """Exits with 1 and one line for each file that names another version."""
    expected = sys.argv[1] if len(sys.argv) > 1 else versions()["pyproject.toml"]
    wrong = {name: found for name, found in versions().items() if found != expected}
    if wrong:
        sys.exit("\n".join(f"{n}: found {v}, expected {expected}" for n, v in wrong.items()))
    print(expected)


if __name__ == "__main__":
    main()
