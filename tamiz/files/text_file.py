"""Text and JSON files, read strictly."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamiz.files.errors import TamizError

_MAX_TEXT_BYTES = 1 << 30
_MAX_JSON_BYTES = 64 << 20
_HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")


def check_regular(path: Path) -> None:
    """Refuses what never ends or never begins: devices, pipes, sockets; folders as well.

    Raises:
        TamizError: It is missing, or no regular file.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TamizError(f"{path}: cannot be read: {reason}") from error
    if not stat.S_ISREG(mode):
        raise TamizError(f"{path}: is no regular file; copy its contents into one")


def read_text(path: Path, longest: int = _MAX_TEXT_BYTES) -> str:
    """The contents of a text file, without byte order mark, CRLF as LF.

    Args:
        path: A regular file.
        longest: Most bytes.

    Raises:
        TamizError: It cannot be read as UTF-8, is no regular file, or is longer.
    """
    return read_utf8(path, longest).removeprefix("\ufeff").replace("\r\n", "\n")


def read_utf8(path: Path, longest: int) -> str:
    """The contents of a text file as they are; see `read_text`."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            data = file.read(longest + 1)
        if len(data) > longest:
            raise TamizError(f"{path}: larger than {longest >> 20} MB")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TamizError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object strictly.

    Returns:
        The object. ``Infinity``, which Python writes and JSON lacks, becomes what transformers 5
        writes for it: ``{"__float__": "Infinity"}``.

    Raises:
        TamizError: Over 64 MB, no regular file, not UTF-8, no JSON object, a duplicate key, half a
            character (``\\ud800``), or NaN or -infinity.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"duplicate key {twice!r}")
        return seen

    def constant_of(name: str) -> dict[str, str]:
        if name != "Infinity":
            raise ValueError(f"{name} is not JSON")
        return {"__float__": name}

    text = read_utf8(path, _MAX_JSON_BYTES)
    try:
        value = json.loads(text, object_pairs_hook=unique, parse_constant=constant_of)
        if _HALF_CHARACTER.search(text):
            check_characters(value)
    except (ValueError, RecursionError) as error:
        raise TamizError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TamizError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def check_characters(value: Any) -> None:
    """Refuses half characters, which JSON can escape and no text in UTF-8 can hold.

    Raises:
        ValueError: A string of `value`, at any depth, holds one.
    """
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        raise ValueError(f"a string holds {half!r}, half a character") from error


def write_json(path: Path, value: Mapping[str, Any], *, compact: bool = False) -> None:
    """Writes a JSON object; see `json_text`.

    Args:
        path: The file.
        value: The object.
        compact: Writes one line and no escapes, for files of megabytes.
    """
    if compact:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        path.write_text(text + "\n", "utf-8")
    else:
        path.write_text(json_text(value), "utf-8")


def json_text(value: Mapping[str, Any]) -> str:
    """A JSON object as text, indented, keys in their order."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"
