"""What becomes of each field of a source: obeyed, refused by name, or without effect.

The tables of `gguf_fields` and `config_fields` are read by the exporters, by the page of the
reference, and by tests that compare them with what gguf and transformers know, so that a new field
is seen.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

_log = logging.getLogger(__name__)


class Treatment(Enum):
    """What becomes of a field."""

    OBEYED = "obeyed"
    REFUSED = "refused"
    NO_EFFECT = "no effect"


#: Null, false, 0 and nothing change nothing in most fields that are refused.
_NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})


@dataclass(frozen=True)
class Field:
    """What becomes of one field.

    Attributes:
        treatment: What becomes of it.
        note: Why, or how far.
        harmless: Values that change nothing, so that they are not refused.
        only: Kinds of models that obey it; empty for all.
        elsewhere: What becomes of it in other kinds of models.
    """

    treatment: Treatment
    note: str = ""
    harmless: tuple[Any, ...] = _NOTHING
    only: tuple[str, ...] = ()
    elsewhere: Treatment = Treatment.REFUSED

    def treatment_in(self, kind: str) -> Treatment:
        """What becomes of it in a kind of model."""
        return self.treatment if kind in self.only or not self.only else self.elsewhere

    def harms(self, value: Any) -> bool:
        """Whether a value changes results, where the field is refused."""
        return not any(same(value, each) for each in self.harmless)


def same(value: Any, other: Any) -> bool:
    """Whether two values of a source are equal."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return bool(type(value) is type(other) or _numbers(value, other)) and bool(value == other)


def _numbers(*values: Any) -> bool:
    return all(type(value) in (int, float) for value in values)


def obeyed(note: str = "", only: Iterable[str] = (), harmless: tuple[Any, ...] = ()) -> Field:
    """A field that is read; in other kinds of models than `only` it is refused, or `harmless`."""
    return Field(Treatment.OBEYED, note, (*harmless, *_NOTHING), tuple(only))


def obeyed_by(only: Iterable[str], note: str = "") -> Field:
    """A field that is read for some kinds of models, and has no effect for others."""
    return Field(Treatment.OBEYED, note, only=tuple(only), elsewhere=Treatment.NO_EFFECT)


def refused(note: str, *harmless: Any) -> Field:
    """A field that changes results in a way that the exported graph lacks."""
    return Field(Treatment.REFUSED, note, (*harmless, *_NOTHING))


def required(note: str) -> Field:
    """A flag that must be true where it is there: the exported graph lacks what false says."""
    return Field(Treatment.REFUSED, note, (True, None))


def no_effect(note: str, *names: str) -> dict[str, Field]:
    """Fields that change no result."""
    return dict.fromkeys(names, Field(Treatment.NO_EFFECT, note))


def obeyed_fields(
    path: Path,
    kind: str,
    values: Mapping[str, Any],
    table: Mapping[str, Field],
    reject: Callable[[str, Any, str], Any],
    prefix: str = "",
) -> dict[str, Any]:
    """Refuses what the table refuses, and warns of what it does not know.

    Args:
        path: The source, for the warning.
        kind: The kind of the model.
        values: The fields.
        table: By name; ``{…}`` in a name stands for any text.
        reject: Raises the error about a field, what was found, and what was expected.
        prefix: What the names begin with in the file.

    Returns:
        The fields that are obeyed.
    """
    unknown, obeyed = [], {}
    for name, value in values.items():
        field = field_of(name, table)
        if field is None:
            unknown.append(name)
            continue
        treatment = field.treatment_in(kind)
        if treatment is Treatment.OBEYED:
            obeyed[name] = value
        elif treatment is Treatment.REFUSED and field.harms(value):
            allowed = " or ".join(str(each) for each in field.harmless if each) or "0"
            reason = f" ({field.note})" if field.treatment is Treatment.REFUSED else ""
            reject(name, value, f"{allowed} or no such key{reason}")
    if unknown:
        names = ", ".join(f"{prefix}{name}" for name in sorted(unknown))
        _log.warning("%s: fields that tamiz does not know are not read: %s", path, names)
    return obeyed


def field_of(name: str, table: Mapping[str, Field]) -> Field | None:
    """What a table says of a field; None where it does not know it."""
    if name in table:
        return table[name]
    for pattern, field in table.items():
        if "{" in pattern and re.fullmatch(re.sub(r"\\{\w+\\}", ".+", re.escape(pattern)), name):
            return field
    return None
