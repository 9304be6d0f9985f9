"""Scratch folders beside what is written, which outlive no run but one that was killed."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tamiz.files.errors import naming
from tamiz.platforms import held

#: The folder in a scratch folder that is worked in, by `tamiz.files.bundle.writing` for one; a
#: scratch folder for this folder may lie beside it.
WRITTEN = "bundle"
#: The folder in `WRITTEN` that holds an older bundle while the new one takes its place.
OLD = "old"
#: What the names of scratch folders have before eight letters of their own.
_MARK = ".tamiz-"
_SCRATCH = re.compile(rf"\..*{re.escape(_MARK)}.{{8}}")


@contextmanager
def held_folder(place: Path) -> Iterator[Path]:
    """A scratch folder beside `place`, removed in the end; those of dead processes go first.

    Every process holds a lock on its folder, which the system releases when the process ends.

    Args:
        place: What is to be written. If a killed process had moved an older one aside, it returns.

    Yields:
        A new folder, ``.<name>.tamiz-xxxxxxxx``.

    Raises:
        UnwritableError: The folder cannot be made there.
    """
    prefix = f".{place.name}{_MARK}"
    for stale in sorted(place.parent.glob(f"{_literal(prefix)}????????")):
        _remove_if_dead(stale, place)
    while True:
        with naming(place):
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place.parent))
        with held(folder) as alone:
            if not alone:  # another process took it for a dead one's before it was locked
                continue
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            return


def is_scratch(path: Path) -> bool:
    """Whether a path lies in a scratch folder, and so is gone soon."""
    return any(_SCRATCH.fullmatch(parent.name) for parent in path.resolve().parents)


def restore(scratch: Path, place: Path) -> None:
    """Gives a place its older bundle back, which a killed process had moved aside.

    Args:
        scratch: The folder that `tamiz.files.bundle.writing` has worked in.
        place: What was to be replaced; stays as it is where it exists.
    """
    old = scratch / OLD
    if old.is_dir() and not place.exists():
        old.rename(place)


def _literal(name: str) -> str:
    """A pattern of glob that matches the name."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _remove_if_dead(folder: Path, place: Path) -> None:
    """Removes a folder that nobody holds and that holds nothing but what is written here."""
    with suppress(OSError), held(folder) as alone:  # an error: gone, or no folder of ours
        if not alone:
            return
        names = (path.name for path in folder.iterdir())
        if all(name == WRITTEN or name.startswith(f".{WRITTEN}.tamiz-") for name in names):
            restore(folder / WRITTEN, place)
            shutil.rmtree(folder, ignore_errors=True)
