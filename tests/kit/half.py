"""A decoder in float16, caches too, as converters of onnxruntime write it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx_ir as ir

from tamiz.files.bundle import DATA, MANIFEST, MODEL
from tamiz.files.mapping import map_tensors

_FLOAT, _HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def to_half(dense: Path, target: Path) -> Path:
    """Writes the model of a dense float32 bundle in float16, with the files beside it."""
    model = ir.load(dense / MODEL)
    map_tensors(model, dense)
    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    for value in values:
        if value.dtype == _FLOAT:
            value.type = ir.TensorType(_HALF)
    for value in model.graph.initializers.values():
        if value.dtype == _FLOAT and value.const_value is not None:
            value.const_value = _half(value.const_value, value.name)
            value.type = ir.TensorType(_HALF)
    for node in model.graph:
        if node.op_type == "Cast" and node.attributes["to"].as_int() == _FLOAT:
            node.attributes["to"] = ir.AttrInt64("to", _HALF)
        if node.op_type == "Constant" and node.attributes["value"].as_tensor().dtype == _FLOAT:
            tensor = _half(node.attributes["value"].as_tensor(), None)
            node.attributes["value"] = ir.AttrTensor("value", tensor)
    target.mkdir()
    for path in dense.iterdir():
        if path.name not in (MODEL, DATA, MANIFEST):
            shutil.copy(path, target)
    ir.save(model, target / MODEL)
    return target


def _half(tensor: ir.TensorProtocol, name: str | None) -> ir.TensorProtocol:
    """The values in float16; the mask's lowest number becomes that of float16."""
    values = np.clip(tensor.numpy(), -65504, 65504)
    return ir.tensor(values.astype(np.float16), name=name)
