"""Places of files that commands write: no input, no bundle, no file of another kind is lost."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tamiz.files.bundle import MANIFEST
from tamiz.files.errors import NO_SPACE, TamizError, naming

#: Bytes that are copied at once.
_AT_ONCE = 1 << 30


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

    Both names share one place on the disk, until `unshare` ends it or one of them is removed.
    """
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        _copy(source, target)


def unshare(folder: Path) -> None:
    """Copies the files of a folder that have another name elsewhere.

    The libraries onnx and onnx-ir refuse weights in a file of several names, as it may be a
    stranger's. File systems that can share the place of a copy until one of both changes do so.
    """
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_nlink > 1:
            own = path.with_name(f".{path.name}.{os.getpid()}.new")
            _copy(path, own)
            own.replace(path)


def _copy(source: Path, target: Path) -> None:
    """Copies within the system, where it can."""
    if sys.platform == "linux":
        try:
            with source.open("rb") as read, target.open("wb") as written:
                while os.copy_file_range(read.fileno(), written.fileno(), _AT_ONCE):
                    pass
            return
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
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
