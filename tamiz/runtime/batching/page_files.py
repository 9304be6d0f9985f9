"""Pages of a cache as files, so that a server that starts again finds what it had read.

A file holds a page of every state of the model one after the other, behind a checksum of them. It
is written aside and renamed, so that a process that is killed leaves whole files or none. The
folder of a model is named by all that the contents depend on: the bundle, its switches, the native
library and its instruction set.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.runtime.model import Model

_CHECKSUM = 32
#: Pages that wait to be written; more are not kept, as the disk is slower than the model.
_WAITING = 64
_log = logging.getLogger("tamiz.runtime")


@dataclass(frozen=True)
class FilesOfPages:
    """Where pages lie as files.

    Attributes:
        folder: Folder of all models.
        most_bytes: Bytes of the files of one model; those of the oldest use go first.
    """

    folder: Path
    most_bytes: int


class PageFiles:
    """Reads and writes pages of a batch; a thread of its own writes.

    Attributes:
        folder: The files of this model.
    """

    def __init__(self, model: Model, cache: Sequence[NDArray[Any]], root: Path, most: int) -> None:
        """Makes the folder.

        Args:
            model: The batch's model.
            cache: Its states, with room for all pages.
            root: Folder of all models.
            most: Bytes of the files; those of the oldest use go first.

        Raises:
            OSError: The folder cannot be made.
        """
        self.folder = root / _key(model)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._states, self._cache, self._most = list(model.states), cache, most
        self._size = sum(file.stat().st_size for file in self._files())
        self._works = True
        self._whole: set[Path] = set()  # written or read by this process
        self._waiting: queue.Queue[tuple[Path, bytes] | None] = queue.Queue(_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="tamiz-pages", daemon=True)
        self._thread.start()

    def has(self, name: bytes) -> bool:
        """Whether there is a file of a page."""
        return self._path(name).is_file()

    def load(self, name: bytes, page: int) -> bool:
        """Reads a page from its file; whether there is one, and it is whole."""
        path = self._path(name)
        try:
            data = path.read_bytes()
            os.utime(path)
        except OSError:
            return False
        parts = self._parts(page)
        whole = len(data) == _CHECKSUM + sum(part.nbytes for part in parts)
        if not whole or data[:_CHECKSUM] != _checksum(memoryview(data)[_CHECKSUM:]):
            _log.warning("%s: is damaged, and is not used", path)
            path.unlink(missing_ok=True)
            return False
        start = _CHECKSUM
        for part in parts:
            values = np.frombuffer(data, part.dtype, part.size, start)
            part[:] = values.reshape(part.shape)
            start += part.nbytes
        self._whole.add(path)
        return True

    def save(self, name: bytes, page: int) -> None:
        """Writes a page, unless too many wait or the disk has failed."""
        path = self._path(name)
        if not self._works or self._waiting.full() or path in self._whole:
            return
        contents = b"".join(np.ascontiguousarray(part).tobytes() for part in self._parts(page))
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait((path, contents))
            self._whole.add(path)

    def close(self) -> None:
        """Writes what waits."""
        self._waiting.put(None)
        self._thread.join()

    def _parts(self, page: int) -> list[NDArray[Any]]:
        """Views of a page in each state."""
        return [s.page(array, page) for s, array in zip(self._states, self._cache, strict=True)]

    def _path(self, name: bytes) -> Path:
        return self.folder / f"{name.hex()}.page"

    def _files(self) -> list[Path]:
        return list(self.folder.glob("*.page"))

    def _write_all(self) -> None:
        while (page := self._waiting.get()) is not None:
            try:
                self._write(*page)
            except OSError as error:
                self._works = False
                _log.warning("%s: %s; pages are not written any more", self.folder, error)

    def _write(self, path: Path, contents: bytes) -> None:
        aside = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with aside.open("wb") as file:
                file.write(_checksum(contents))
                file.write(contents)
            aside.replace(path)
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        self._size += _CHECKSUM + len(contents)
        if self._size > self._most:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        """Removes files until a tenth of the room is free."""
        files = sorted(
            (file.stat().st_mtime_ns, file.stat().st_size, file) for file in self._files()
        )
        self._size = sum(size for _, size, _ in files)
        for _, size, file in files:
            if self._size <= 0.9 * self._most:
                return
            file.unlink(missing_ok=True)
            self._whole.discard(file)
            self._size -= size


def _checksum(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=_CHECKSUM).digest()


def _key(model: Model) -> str:
    """A name for all that the contents of a page depend on beside its tokens."""
    import tamiz_ops

    digest = blake2b(digest_size=16)
    files = model.bundle.manifest.files
    for part in (
        *(f"{name}={files[name].sha256}" for name in sorted(files) if name.startswith("model.")),
        *sorted(model.without),
        blake2b(Path(tamiz_ops.library_path()).read_bytes()).hexdigest(),
        tamiz_ops.cpu()["isa"],
    ):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()
