from typing import Any, TypedDict

class Port(TypedDict):
    name: str
    type: str
    optional: bool
    doc: str

class Attribute(TypedDict):
    name: str
    type: str
    required: bool
    default: Any
    doc: str

class Metric(TypedDict):
    name: str
    unit: str
    doc: str

class Schema(TypedDict):
    doc: str
    variadic: bool
    inputs: list[Port]
    outputs: list[Port]
    attributes: list[Attribute]
    metrics: list[Metric]

class Cpu(TypedDict):
    isa: str
    isas: list[str]
    features: dict[str, bool]

def run(
    op: str,
    inputs: list[Any],
    out: list[Any] | None,
    isa: str | None,
    threads: int,
    attributes: dict[str, Any],
) -> list[Any]: ...
def schemas() -> dict[str, Schema]: ...
def cpu() -> Cpu: ...
def metrics(session: str) -> dict[str, dict[str, float]]: ...
def reset_metrics(session: str) -> None: ...
