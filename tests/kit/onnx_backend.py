"""ONNX's own backend tests, of the package `onnx`: models with inputs and expected outputs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test


@dataclass(frozen=True)
class Case:
    """One model.

    Attributes:
        name: Its name in ONNX.
        model: The model.
        inputs: Of its first data set, by name.
    """

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Any]


@cache
def cases() -> tuple[Case, ...]:
    """All cases that bring their data, by name."""
    found = {case.name: case for case in (*_stored(), *_generated())}
    return tuple(found[name] for name in sorted(found))


def _generated() -> Iterator[Case]:
    """The cases of single nodes, which ONNX makes when it is asked."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = collect_testcases(None)
    for case in made:
        if case.model is not None and case.data_sets:
            yield Case(case.name, case.model, _named(case.model, case.data_sets[0][0]))


def _stored() -> Iterator[Case]:
    """The cases that lie in the package as files."""
    folder = Path(onnx.backend.test.__file__).parent / "data"
    for path in sorted(folder.glob("*/*/model.onnx")):
        model = onnx.load(path)
        files = sorted((path.parent / "test_data_set_0").glob("input_*.pb"), key=_number)
        if files:
            names = zip(_inputs(model), files, strict=False)
            inputs = {value.name: _read(value, file) for value, file in names}
            yield Case(path.parent.name, model, inputs)


def _number(path: Path) -> int:
    return int(path.stem.rpartition("_")[2])


def _inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [value for value in model.graph.input if value.name not in constants]


def _named(model: onnx.ModelProto, values: Any) -> dict[str, Any]:
    named = zip(_inputs(model), values, strict=False)
    return {value.name: _plain(array) for value, array in named}


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return value if value is None or isinstance(value, (list, dict)) else np.asarray(value)


def _read(value: onnx.ValueInfoProto, file: Path) -> Any:
    kind = value.type.WhichOneof("value")
    if kind == "sequence_type":
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(file.read_bytes()))
    if kind == "optional_type":
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(file.read_bytes()))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))
