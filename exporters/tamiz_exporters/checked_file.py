"""Binary files of others, read with every length checked against the file's size."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tamiz.api import TamizError

_MAX_SHOWN = 120


def fail(path: Path, field: str, found: Any, expected: str) -> NoReturn:
    """Raises the TamizError that says what is wrong with a field of a file.

    Args:
        path: The file.
        field: What was looked at.
        found: What stands there; shortened and escaped, as the file may hold anything.
        expected: What should stand there.
    """
    field, found = _shown(field), _shown(str(found))
    raise TamizError(f"{path}: {field}: found {found}, expected {expected}")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Tells in one sentence where a file holds other types than its readers take for granted.

    Args:
        path: The file.

    Raises:
        TamizError: Something within met a value of another type or form.
    """
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise TamizError(f"{path}: not of the expected form ({_shown(repr(error))})") from error


def _shown(text: str) -> str:
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


class CheckedFile:
    """A mapped file that is read from its begin to its end.

    Attributes:
        path: The file.
        offset: Bytes that were read.
        size: Bytes of the file.
        bytes: Its contents.
    """

    def __init__(self, path: Path, least: int) -> None:
        """Maps the file.

        Args:
            path: The file.
            least: Bytes of the smallest such file, at least 1.

        Raises:
            TamizError: It cannot be read, or is smaller.
        """
        self.path, self.offset = path, 0
        try:
            with path.open("rb") as file:
                self.size = path.stat().st_size
                if self.size < least:
                    self.fail("size", f"{self.size} bytes", f"a header of at least {least} bytes")
                self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise TamizError(f"{path}: cannot be read: {error.strerror}") from error

    def fail(self, field: str, found: Any, expected: str) -> NoReturn:
        """Raises the TamizError that says what is wrong with the file; see `fail`."""
        fail(self.path, field, found, expected)

    def take(self, size: int, field: str) -> int:
        """Advances over `size` bytes and returns where they begin.

        Raises:
            TamizError: The file has fewer bytes left.
        """
        begin = self.offset
        if size > self.size - begin:
            self.fail(field, f"{self.size - begin} bytes left in the file", f"{size} bytes")
        self.offset = begin + size
        return begin

    def number(self, code: str, field: str) -> int:
        """The integer that comes next, by its code in `struct`.

        Raises:
            TamizError: The file ends before.
        """
        begin = self.take(struct.calcsize(code), field)
        (value,) = struct.unpack_from(code, self.bytes, begin)
        return int(value)

    def text(self, length: int, field: str) -> str:
        """The UTF-8 text of so many bytes that comes next.

        Raises:
            TamizError: The file ends before, or the bytes are no UTF-8.
        """
        begin = self.take(length, field)
        try:
            return self.bytes[begin : begin + length].decode("utf-8")
        except UnicodeDecodeError:
            self.fail(field, "bytes that are not UTF-8", "UTF-8 text")
