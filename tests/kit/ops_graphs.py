"""Small ONNX models around ops of the `tamiz` domain."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper

import tamiz_ops


def node(
    op: str, inputs: list[str], outputs: list[str], name: str = "", /, **attributes: Any
) -> onnx.NodeProto:
    made = helper.make_node(op, inputs, outputs, name=name or op, domain="tamiz")
    made.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
    return made


def value(name: str, dtype: Any = np.float32, shape: Any = None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(
        name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape
    )


def model(nodes, inputs, outputs, constants=None) -> bytes:
    """A serialised model; `inputs` and `outputs` are value infos or names of float32 values."""
    ins, outs = ([value(v) if isinstance(v, str) else v for v in vs] for vs in (inputs, outputs))
    initializers = [numpy_helper.from_array(array, key) for key, array in (constants or {}).items()]
    graph = helper.make_graph(nodes, "test", ins, outs, initializers)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("tamiz", 1)]
    made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return made.SerializeToString()


def session(serialized: bytes, threads: int = 1) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    tamiz_ops.register(options)
    return ort.InferenceSession(serialized, options, providers=["CPUExecutionProvider"])
