"""What the ops declare in C++: numbers of their ports, and their metrics."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from tamiz_ops import _native

if TYPE_CHECKING:
    from tamiz_ops._native import Schema


class Ports(NamedTuple):
    """Input and output numbers of an op by name, in the order of the node's inputs and outputs."""

    inputs: dict[str, int]
    outputs: dict[str, int]


class OpMetric(NamedTuple):
    """A counter that each node of an op adds to, see `tamiz_ops.metrics`."""

    name: str
    unit: str
    description: str


@cache
def _schemas() -> dict[str, Schema]:
    return _native.schemas()


def _schema(op: str) -> Schema:
    schema = _schemas().get(op)
    if schema is None:
        raise ValueError(f"no op of the tamiz domain is named {op!r}: {', '.join(_schemas())}")
    return schema


def ports(op: str) -> Ports:
    """Returns the port numbers of an op: `ports("Attention").inputs["past_key"]` is 3.

    Raises:
        ValueError: the `tamiz` domain has no op of this name.
    """
    schema = _schema(op)
    return Ports(
        {port["name"]: number for number, port in enumerate(schema["inputs"])},
        {port["name"]: number for number, port in enumerate(schema["outputs"])},
    )


def op_metrics(op: str) -> tuple[OpMetric, ...]:
    """Returns the metrics that an op counts, in the order in which it declares them.

    Raises:
        ValueError: the `tamiz` domain has no op of this name.
    """
    return tuple(OpMetric(m["name"], m["unit"], m["doc"]) for m in _schema(op)["metrics"])
