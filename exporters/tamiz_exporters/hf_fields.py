"""Checked access to the values of a ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from tamiz_exporters.checked_file import fail
from tamiz_exporters.source_fields import Field, obeyed_fields

_LARGEST = 1 << 31
_LARGEST_NUMBER = 1e30  # float32 holds it


@dataclass(frozen=True)
class Fields:
    """A JSON object of a configuration; null and absence are the same but for `nullable`.

    Attributes:
        path: The file.
        values: The object.
        within: What the names of its keys begin with in messages, such as ``rope_scaling.``.
        own: What the file calls keys that have another name here, for messages.
    """

    path: Path
    values: Mapping[str, Any]
    within: str = ""
    own: Mapping[str, str] = field(default_factory=dict)

    def given(self, key: str) -> Any:
        """A value of any type; None where the key is absent."""
        return self.values.get(key)

    def positive(self, key: str, default: int | None = None) -> int:
        """A positive integer below 2^31.

        Args:
            key: The key.
            default: Value where the key is absent; None makes the key required.

        Raises:
            TamizError: It is absent and required, or something else.
        """
        value = self._value(key, default, "a positive number")
        if type(value) is not int or not 0 < value < _LARGEST:
            self.reject(key, value, "a positive number")
        return value

    def uniform(self, key: str, default: int | None = None) -> int:
        """A positive integer, perhaps listed for every layer; see `positive`.

        Raises:
            TamizError: As `positive`, or it differs between layers.
        """
        listed = self.given(key)
        if not isinstance(listed, list):
            return self.positive(key, default)
        if not listed or any(value != listed[0] for value in listed):
            self.reject(key, listed, "one number in all layers")
        return replace(self, values={key: listed[0]}).positive(key)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number from 0 to 2^31; see `positive`.

        Raises:
            TamizError: It is absent and required, or something else.
        """
        value = self._value(key, default, "a whole number")
        if type(value) is not int or not 0 <= value < _LARGEST:
            self.reject(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A positive, finite number.

        Args:
            key: The key.
            default: Value where the key is absent; None makes the key required.

        Raises:
            TamizError: It is absent and required, or something else.
        """
        value = self._value(key, default, "a positive number")
        if type(value) not in (int, float) or not 0 < value < _LARGEST_NUMBER:
            self.reject(key, value, "a positive number")
        return float(value)

    def nullable(self, key: str, default: float) -> float:
        """A positive, finite number, or 0 for 0 and for null.

        Args:
            key: The key.
            default: Value where the key is absent.

        Raises:
            TamizError: It is something else.
        """
        if key in self.values and self.values[key] is None:
            return 0.0
        if self.values.get(key, default) == 0:
            return 0.0
        return self.number(key, default)

    def numbers(self, key: str, count: int) -> list[float]:
        """A list of positive, finite numbers.

        Raises:
            TamizError: It is absent or something else.
        """
        values = self._value(key, None, f"{count} positive numbers")
        fits = isinstance(values, list) and len(values) == count
        if not fits or not all(
            type(value) in (int, float) and math.isfinite(value) and value > 0 for value in values
        ):
            self.reject(key, values, f"{count} positive numbers")
        return [float(value) for value in values]

    def text(self, key: str, default: str) -> str:
        """A string.

        Raises:
            TamizError: It is something else.
        """
        value = self._value(key, default, "a string")
        if not isinstance(value, str):
            self.reject(key, value, "a string")
        return value

    def flag(self, key: str) -> bool | None:
        """True or false; None where the key is absent.

        Raises:
            TamizError: It is something else.
        """
        value = self.given(key)
        if value is not None and not isinstance(value, bool):
            self.reject(key, value, "true or false")
        return value

    def group(self, key: str) -> Fields | None:
        """An object in this one; None where the key is absent.

        Raises:
            TamizError: It is something else.
        """
        value = self.given(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.reject(key, value, "an object")
        return Fields(self.path, value, f"{self.within}{key}.")

    def obeyed(self, kind: str, table: Mapping[str, Field]) -> Fields:
        """Those of the fields that are obeyed.

        Args:
            kind: The kind of the model.
            table: What becomes of each field.

        Raises:
            TamizError: A field is refused.
        """

        def refuse(key: str, found: Any, expected: str) -> None:
            self.reject(key, found, f"{expected}; try: optimum-cli export onnx")

        values = obeyed_fields(self.path, kind, self.values, table, refuse, self.within)
        return replace(self, values=values)

    def renamed(self, names: Mapping[str, str]) -> Fields:
        """The same values under the names that most models have.

        Args:
            names: Usual name → what this kind of model calls it.

        Raises:
            TamizError: A key has both names, with values that differ.
        """
        values, own = dict(self.values), {}
        for usual, name in names.items():
            value, other = values.pop(name, None), values.get(usual)
            if value is None and other is not None:
                continue
            if other not in (None, value):
                self.reject(name, value, f"{other}, as {usual}")
            own[usual] = name
            if value is not None:
                values[usual] = value
        return replace(self, values=values, own=own)

    def reject(self, key: str, found: Any, expected: str) -> NoReturn:
        """Raises the TamizError that says what is wrong with a key."""
        fail(self.path, f"{self.within}{self.own.get(key, key)}", found, expected)

    def _value(self, key: str, default: Any, expected: str) -> Any:
        value = self.given(key)
        value = default if value is None else value
        if value is None:
            self.reject(key, "nothing", expected)
        return value
