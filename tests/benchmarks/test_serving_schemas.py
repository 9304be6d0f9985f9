"""What the benchmark of JSON schemas reads and how it judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jsonschema", reason="pip install jsonschema")

from benchmarks.serving.serving_schemas import Case, cases, judge


def test_schemas_of_all_folders_are_read(tmp_path: Path) -> None:
    for name in ("b.json", "optional/format/a.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps([{"description": "x", "schema": {}, "tests": []}]), "utf-8")
    assert list(cases(tmp_path)) == [Case("b: x", {}), Case("optional/format/a: x", {})]


@pytest.mark.parametrize(
    ("schema", "text", "verdict"),
    [
        ({"type": "integer"}, "3", "valid"),
        ({"type": "integer"}, '"3"', "invalid"),
        ({"type": "integer"}, "3, 4", "invalid"),
        ({"multipleOf": 0.0001}, "11.5224", "valid"),
        ({"type": "number"}, "1.5E-99999999999999999999", "valid"),
        ({"type": "string"}, "1.5E-99999999999999999999", "invalid"),
        ({"format": "ipv4"}, '"1.2.3.4"', "valid"),
        ({"format": "ipv4"}, '"1.2.3"', "invalid"),
        ({"$ref": "#/$defs/none"}, "1", "unjudged"),
    ],
)
def test_an_answer_is_judged(schema: dict[str, Any], text: str, verdict: str) -> None:
    assert judge(schema, text) == verdict
