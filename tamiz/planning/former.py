"""Policies of earlier versions: techniques with another name, settings that are constants now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tamiz.api.technique import Technique
from tamiz.planning.choice import by_any_name


def updated(value: Any, techniques: Mapping[str, Technique]) -> Any:
    """A policy, or a part of one, with the current names; not yet held to its schema.

    A technique that is there under both names keeps both, which the schema refuses.
    """
    if isinstance(value, list):
        return [updated(inner, techniques) for inner in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _sections(inner, by_any_name(techniques))
        if key == "techniques" and isinstance(inner, dict)
        else updated(inner, techniques)
        for key, inner in value.items()
    }


def _sections(sections: Mapping[str, Any], techniques: Mapping[str, Technique]) -> dict[str, Any]:
    renamed = {}
    for name, fields in sections.items():
        technique = techniques.get(name)
        taken = technique is None or technique.name in sections
        renamed[name if taken or technique is None else technique.name] = (
            _settings(fields, technique) if technique and isinstance(fields, dict) else fields
        )
    return renamed


def _settings(fields: Mapping[str, Any], technique: Technique) -> dict[str, Any]:
    """Fields of a technique without removed ones that have the value which is constant now."""
    removed = technique.config.removed
    return {k: v for k, v in fields.items() if k not in removed or v != removed[k]}
