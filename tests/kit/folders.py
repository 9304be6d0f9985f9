"""What lies in a folder."""

from collections.abc import Collection
from pathlib import Path

#: Files that hold how long a build took, and the manifest, which has their checksums.
TIMED = frozenset({"report.json", "report.html", "tamiz.json"})


def contents(folder: Path, without: Collection[str] = ()) -> dict[str, bytes]:
    """The bytes of all files of a folder, by path, but of those with the given names."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in without
    }
