"""Places of files that commands write: no input, no bundle, no file of another kind is lost."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tamiz.files.bundle import MANIFEST
from tamiz.files.errors import TamizError, naming


def check_output(
    path: Path, kind: str, is_kind: Callable[[Path], bool], others: Iterable[Path]
) -> None:
    """Refuses a place where a file would destroy another one, before anything is computed.

    Args:
        path: Where the file is going to be written.
        kind: What the file holds, as the user knows it: ``a calibration``.
        is_kind: Whether an existing file holds that.
        others: Files and folders that the command reads, and folders that it writes.

    Raises:
        TamizError: `path` is a folder, one of `others` or inside of it, inside of a bundle, or
            holds a file of another kind; or no file can be made there.
    """
    place = path.resolve()
    if path.is_dir():
        raise TamizError(f"{path}: is a folder, expected a file")
    for other in others:
        same = path.exists() and other.exists() and path.samefile(other)
        if same or place.is_relative_to(other.resolve()):
            where = "is" if same or place == other.resolve() else "lies inside of"
            raise TamizError(f"{path}: {where} {other}, which the command uses; try another place")
    if bundle := next((p for p in place.parents if (p / MANIFEST).is_file()), None):
        raise TamizError(f"{path}: lies inside of the bundle {bundle}; try another place")
    if path.is_file() and path.stat().st_size > 0 and not is_kind(path):
        raise TamizError(f"{path}: exists and is not {kind}; remove it, or try another place")
    if path.is_file() or not path.exists():
        with naming(path), tempfile.TemporaryFile(dir=path.parent):
            pass


def link_or_copy(source: Path, target: Path) -> None:
    """Gives a file a second name, or copies it where the file system has no hard links.

    Both names share one place on the disk. That is safe for files that nobody edits: tamiz replaces
    the files of a bundle and never changes them in place.
    """
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)


def write_whole(path: Path, text: str) -> None:
    """Writes a text file that appears when it is complete; a device is written as it is.

    Raises:
        UnwritableError: No space, no permission, or no such folder.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.new")
    with naming(path):
        if path.exists() and not path.is_file():
            path.write_text(text, "utf-8")
            return
        try:
            scratch.write_text(text, "utf-8")
            scratch.replace(path.resolve())
        finally:
            scratch.unlink(missing_ok=True)
