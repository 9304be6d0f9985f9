"""Texts of commands, settings, keys, metrics and ops: no private words, short sentences."""

from collections.abc import Iterator
from typing import Any

import click
import pytest

import tamiz_ops
from kit.words import faults
from tamiz.cli import COMMANDS, main
from tamiz.cli._techniques import TechniqueCommand
from tamiz.planning.policy_schema import policy_model
from tamiz.planning.recipes import recipes
from tamiz.plugins import load


def texts() -> Iterator[tuple[str, str]]:
    """Everything that help and reference show, by where it is said."""
    with click.Context(main, info_name="tamiz") as root:
        yield "tamiz", main.help or ""
        for name in COMMANDS:
            command = main.get_command(root, name)
            assert command is not None
            yield f"tamiz {name}", command.help or ""
            for parameter in command.params:
                if isinstance(parameter, click.Option):
                    yield f"tamiz {name} {parameter.opts[0]}", parameter.help or ""
            assert not isinstance(command, TechniqueCommand) or command.own_flags()
    for name, technique in load().techniques().items():
        yield f"technique {name}", technique.summary
        yield f"technique {name}, pays", technique.pays
        for field, info in technique.config.model_fields.items():
            yield f"setting {technique.flag(field)}", info.description or ""
        for metric in technique.metrics:
            yield f"metric {metric.name} of {name}", metric.description
    for name, op in tamiz_ops.schemas().items():
        yield f"op {name}", op["doc"]
        for kind in ("inputs", "outputs", "attributes", "metrics"):
            for part in op[kind]:
                yield f"op {name}.{part['name']}", part["doc"]
    for name, recipe in recipes().items():
        yield f"recipe {name}", f"{recipe.summary}. {recipe.pays}"
    yield from descriptions("policy", policy_model({}).model_json_schema())


def descriptions(place: str, schema: Any) -> Iterator[tuple[str, str]]:
    if isinstance(schema, dict):
        if isinstance(schema.get("description"), str):
            yield place, schema["description"]
        for key, value in schema.items():
            yield from descriptions(f"{place}.{key}", value)


TEXTS = dict(texts())


@pytest.mark.parametrize("place", TEXTS)
def test_a_text_is_plain(place: str) -> None:
    text = " ".join(TEXTS[place].split())
    assert text, f"{place} has no text"
    assert faults(text) == [], place
