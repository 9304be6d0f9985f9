"""What pydantic found wrong with a JSON value, as one clause: the field, found, expected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

#: Keys and indices that lead to a value.
Place = tuple[str | int, ...]


def first_error(error: ValidationError, value: Any) -> str:
    """The first error of a validation: ``sites.output.kind: expected 'linear', found 3``."""
    first = error.errors()[0]
    where = place_of(first["loc"], value)
    field = ".".join(map(str, where))
    return f"{field}: {describe(first)}" if field else describe(first)


def describe(error: ErrorDetails, patterns: Mapping[str, str] | None = None) -> str:
    """What is wrong with one field.

    Args:
        error: What pydantic says.
        patterns: Regular expressions in words.
    """
    if error["type"] == "missing":
        return f"lacks the key {error['loc'][-1]!r}"
    if error["type"] == "extra_forbidden":
        return "unknown key"
    if error["type"] == "json_invalid":
        return f"not valid JSON: {error['msg'].removeprefix('Invalid JSON: ')}"
    message = error["msg"].removeprefix("Value error, ").replace("Input should be", "expected")
    if error["type"] == "string_pattern_mismatch":
        pattern = error["ctx"]["pattern"]
        message = f"expected {(patterns or {}).get(pattern, f'text that matches {pattern}')}"
    found = "an object" if isinstance(error["input"], dict) else f"{error['input']!r:.60}"
    return f"{message}, found {found}"


def place_of(loc: Sequence[str | int], value: Any) -> Place:
    """The part of pydantic's location that exists in the value; the rest names union members."""
    place: list[str | int] = []
    for part in loc:
        inside = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inside, dict) and part in inside:
            value = inside[part]
            place.append(part)
    return tuple(place)
