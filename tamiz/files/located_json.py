"""Strict JSON that remembers where everything stood, so that an error can name the line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

from tamiz.files.errors import TamizError
from tamiz.files.text_file import check_characters, read_utf8

_MAX_BYTES = 1 << 20
_MAX_DEPTH = 32
_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|true|false|null")

#: Keys and indices that lead to a value.
Place = tuple[str | int, ...]


class LocatedJson:
    """A parsed JSON file.

    Attributes:
        path: The file.
        value: Its value.
    """

    def __init__(self, path: Path) -> None:
        """Reads and parses a file.

        Raises:
            TamizError: Not readable, over 1 MB, not UTF-8, not JSON (NaN is not), or a key is
                duplicated in one object; with the line.
        """
        self.path = path
        self._text = read_utf8(path, _MAX_BYTES)
        self._offsets: dict[Place, int] = {}
        self.value, end = self._read(self._skip(0), ())
        if self._skip(end) != len(self._text):
            raise self._error(end, "more text after the value")

    def error(self, place: Sequence[str | int], message: str) -> TamizError:
        """An error that names file, JSON path and line of the value at `place`, or around it."""
        path = tuple(place)
        while path not in self._offsets:
            path = path[:-1]
        line = self._text.count("\n", 0, self._offsets[path]) + 1
        return TamizError(f"{self.path}:{line}: {_json_path(place)}: {message}")

    def _error(self, offset: int, message: str) -> TamizError:
        line = self._text.count("\n", 0, offset) + 1
        return TamizError(f"{self.path}:{line}: not valid JSON: {message}")

    def _skip(self, offset: int) -> int:
        match = _SPACE.match(self._text, offset)
        assert match is not None
        return match.end()

    def _read(self, at: int, place: Place) -> tuple[Any, int]:
        """The value that begins at an offset, and the offset after it."""
        self._offsets.setdefault(place, at)
        if len(place) > _MAX_DEPTH:
            raise self._error(at, f"nested deeper than {_MAX_DEPTH}")
        start = self._text[at : at + 1]
        if start == '"':
            return self._string(at)
        if start == "{":
            return self._object(at, place)
        if start == "[":
            values: list[Any] = []
            for item in self._items(at, "]"):
                value, end = self._read(item, (*place, len(values)))
                values.append(value)
                self._end = end
            return values, self._end
        match = _SCALAR.match(self._text, at)
        if match is None or len(match.group()) > 40:
            found = self._text[at : at + 10].split("\n")[0]
            raise self._error(at, f"expected a value, found {found!r}")
        return json.loads(match.group()), match.end()

    def _object(self, at: int, place: Place) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        for item in self._items(at, "}"):
            if self._text[item : item + 1] != '"':
                raise self._error(item, "expected a key in double quotes")
            key, end = self._string(item)
            if key in values:
                raise self.error_at(item, place, f"duplicate key {key!r}")
            here = (*place, key)
            self._offsets[here] = item
            colon = self._skip(end)
            if self._text[colon : colon + 1] != ":":
                raise self._error(colon, f"expected ':' after the key {key!r}")
            values[key], self._end = self._read(self._skip(colon + 1), here)
        return values, self._end

    def error_at(self, offset: int, place: Place, message: str) -> TamizError:
        """An error at an offset inside of the value at `place`."""
        line = self._text.count("\n", 0, offset) + 1
        return TamizError(f"{self.path}:{line}: {_json_path(place)}: {message}")

    def _items(self, at: int, close: str) -> Iterator[int]:
        """Offsets of the items of an object or array; `_end` is set past each, at last past all."""
        at = self._skip(at + 1)
        if self._text[at : at + 1] != close:
            while True:
                yield at
                at = self._skip(self._end)
                separator = self._text[at : at + 1]
                if separator == close:
                    break
                if separator != ",":
                    raise self._error(at, f"expected ',' or '{close}'")
                at = self._skip(at + 1)
        self._end = at + 1

    def _string(self, at: int) -> tuple[str, int]:
        try:
            value, end = scanstring(self._text, at + 1, True)
            check_characters(value)
        except ValueError as error:
            raise self._error(at, str(error)) from error
        return value, end


def _json_path(place: Sequence[str | int]) -> str:
    """``$.layers["8"].K`` as it is written."""
    parts = ["$"]
    for part in place:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        else:
            parts.append(f".{part}" if part.isidentifier() else f"[{json.dumps(part)}]")
    return "".join(parts)
