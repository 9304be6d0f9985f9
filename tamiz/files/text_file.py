"""Text and JSON files, read strictly."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tamiz.files.errors import TamizError

_MAX_JSON_BYTES = 64 << 20


def read_text(path: Path) -> str:
    """The contents of a text file.

    Raises:
        TamizError: It cannot be read as UTF-8.
    """
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TamizError(f"{path}: cannot be read as UTF-8 text: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON object strictly.

    Raises:
        TamizError: Over 64 MB, not UTF-8, no JSON object, a duplicate key, or NaN or infinity.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        seen = dict(pairs)
        if len(seen) != len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"the key {twice!r} stands twice")
        return seen

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    if path.stat().st_size > _MAX_JSON_BYTES:
        raise TamizError(
            f"{path}: larger than {_MAX_JSON_BYTES >> 20} MB, expected a small JSON file"
        )
    try:
        value = json.loads(path.read_text("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise TamizError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise TamizError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON object, indented, keys in their order."""
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", "utf-8")
