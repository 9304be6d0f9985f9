"""The settings of one technique as help texts and the reference show them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from tamiz.api.technique import Technique

#: Bounds in JSON Schema, and the sign that shows each.
_BOUNDS = (
    ("exclusiveMinimum", ">"),
    ("minimum", "≥"),
    ("exclusiveMaximum", "<"),
    ("maximum", "≤"),
    ("multipleOf", "multiple of"),
)


class Setting(NamedTuple):
    """One option of a technique.

    Attributes:
        flag: The command-line option, ``--kwta-k``.
        values: The values it takes, ``number > 0, ≤ 1``.
        default: The default as the command line would take it; ``unset`` for none.
        effect: What the setting does, with its unit.
    """

    flag: str
    values: str
    default: str
    effect: str


def settings(technique: Technique) -> list[Setting]:
    """The technique's switch, then its other settings in the order of its configuration."""
    schema = technique.config.model_json_schema()["properties"]
    switch = [Setting(f"--{technique.name}", "on | off", _on(technique), technique.summary)]
    fields = []
    for field in technique.config.model_fields:
        if technique.is_policy_only(field):
            continue
        setting = _setting(technique.flag(field), schema[field])
        if setting.flag == switch[0].flag:
            switch = [
                setting._replace(values=f"on | off | {setting.values}", default=_on(technique))
            ]
        else:
            fields.append(setting)
    return switch + fields


def policy_keys(technique: Technique) -> list[Setting]:
    """The settings that only policies list, each under its key."""
    schema = technique.config.model_json_schema()["properties"]
    keys = [field for field in schema if technique.is_policy_only(field)]
    return [_setting(key, schema[key]) for key in keys]


def _setting(name: str, schema: Mapping[str, Any]) -> Setting:
    return Setting(
        name, values(schema), _default(schema.get("default")), schema.get("description", "")
    )


def _on(technique: Technique) -> str:
    return "on" if technique.default else "off"


def _default(value: Any) -> str:
    if value is None:
        return "unset"
    return value if isinstance(value, str) else json.dumps(value)


def values(schema: Mapping[str, Any]) -> str:
    """The values that a JSON Schema allows, in words."""
    if "anyOf" in schema:
        kinds = [values(kind) for kind in schema["anyOf"] if kind.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in schema or "const" in schema:
        return " | ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    kind = schema.get("type", "value")
    if kind == "boolean":
        return "true | false"
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS if key in schema]
    return f"{kind} {', '.join(bounds)}".strip()


def by_standing(techniques: Iterable[Technique]) -> list[Technique]:
    """Techniques in the order of help texts: recommended, situational, experimental; by name."""
    from tamiz.api.technique import Standing

    rank = list(Standing)
    return sorted(techniques, key=lambda t: (rank.index(t.standing), t.name))


def write_techniques(
    formatter: click.HelpFormatter, techniques: Iterable[Technique], prefix: str = ""
) -> None:
    """Writes one line per technique, in a section per standing; `prefix` precedes each name."""
    for standing, group in groupby(by_standing(techniques), key=lambda t: t.standing):
        with formatter.section(f"Techniques, {standing.value}"):
            formatter.write_dl([(f"{prefix}{t.name}", t.summary) for t in group])
