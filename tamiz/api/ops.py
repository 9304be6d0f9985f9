"""What the ops of the domain `tamiz` declare: ports, defaults of attributes, run-time metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True)
class Metric:
    """A run-time metric that the technique's ops report.

    Attributes:
        name: As the report and `tamiz_ops.metrics` name it, ``kwta.keep_ratio``.
        unit: ``bytes``, ``fraction``, ``ms``, …
        description: One sentence.
    """

    name: str
    unit: str
    description: str


@cache
def _schema(op_type: str) -> Mapping[str, Any]:
    """What an op of the domain `tamiz` declares.

    Raises:
        ValueError: There is no such op.
    """
    import tamiz_ops

    schemas = tamiz_ops.schemas()
    if op_type not in schemas:
        raise ValueError(f"op is {op_type!r}, expected one of: {', '.join(schemas)}")
    schema: Mapping[str, Any] = schemas[op_type]
    return schema


@cache
def inputs_of(op_type: str) -> Mapping[str, int]:
    """Index of each input of an op of the domain `tamiz`, by name.

    Raises:
        ValueError: There is no such op.
    """
    return {port["name"]: index for index, port in enumerate(_schema(op_type)["inputs"])}


@cache
def outputs_of(op_type: str) -> Mapping[str, int]:
    """Index of each output of an op of the domain `tamiz`, by name.

    Raises:
        ValueError: There is no such op.
    """
    return {port["name"]: index for index, port in enumerate(_schema(op_type)["outputs"])}


def default_of(op_type: str, attribute: str) -> Any:
    """The declared default of an attribute of an op of the domain `tamiz`.

    Raises:
        ValueError: There is no such op.
        KeyError: The op has no such attribute.
    """
    return {a["name"]: a["default"] for a in _schema(op_type)["attributes"]}[attribute]


def op_metrics(op_type: str) -> tuple[Metric, ...]:
    """The run-time metrics that an op of the domain `tamiz` declares.

    Raises:
        ValueError: There is no such op.
    """
    declared = _schema(op_type)["metrics"]
    return tuple(Metric(m["name"], m["unit"], m["doc"]) for m in declared)
