from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

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
def fit_seedlm(
    weight: npt.NDArray[np.float32], root_m: npt.NDArray[np.float32], bits: int, isa: str | None
) -> npt.NDArray[np.uint8]: ...
def fit_format(
    format: tuple[Any, ...],
    weight: npt.NDArray[np.float32],
    cost: npt.NDArray[np.float32],
    search: bool,
) -> tuple[Any, ...]: ...
def round_with_feedback(
    format: tuple[Any, ...],
    weight: npt.NDArray[np.float32],
    carried: npt.NDArray[np.float32],
    r: npt.NDArray[np.float32],
    scale: npt.NDArray[np.float32],
    minimum: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]: ...
def schemas() -> dict[str, Schema]: ...
def grid(format: str) -> npt.NDArray[np.int8]: ...
def cpu() -> Cpu: ...
def metrics(session: str) -> dict[str, dict[str, dict[str, float]]]: ...
def reset_metrics(session: str) -> None: ...
