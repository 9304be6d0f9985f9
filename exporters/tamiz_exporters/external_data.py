"""Models whose weights lie beside them in one file: checked when read, aligned when written."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from tamiz.api import DATA, MODEL, TamizError, file_inside, map_tensors, mark_unknown_sizes

#: Offsets in the data file, in bytes: a page, so that every mapped tensor starts on one.
ALIGNMENT = 4096
#: Tensors up to this many bytes stay in the .onnx file.
INLINE_BYTES = 256
#: Values of a tensor, more than any machine holds.
_MOST_VALUES = 1 << 48


def save_model(model: ir.Model, directory: Path) -> None:
    """Writes ``model.onnx`` and ``model.onnx.data``, one tensor in memory at a time.

    Raises:
        TamizError: If reading a tensor raises it.
    """
    try:
        ir.save(
            model,
            directory / MODEL,
            external_data=DATA,
            size_threshold_bytes=INLINE_BYTES,
            alignment=ALIGNMENT,
            align_threshold=0,
        )
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # onnx_ir wraps what a tensor raises in its own errors
            if isinstance(cause, (TamizError, OSError)):
                raise cause from error
            cause = cause.__cause__ or cause.__context__
        raise


def load_model(path: Path) -> ir.Model:
    """Reads a model without its weights and checks where they lie.

    Args:
        path: The .onnx file.

    Returns:
        The model; external tensors are mapped when used, sizes such as -1 are unknown.

    Raises:
        TamizError: If the file is no ONNX model or holds a Loop, or external data is missing, too
            short, or outside of the model's folder.
    """
    try:
        model = ir.load(path)
    except OSError as error:
        raise TamizError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:
        if place := _malformed_place(path):
            raise TamizError(f"{path}: {place}") from error
        raise TamizError(f"{path}: not an ONNX model ({_first_line(error)})") from error
    if any(node.op_type == "Loop" for node in _nodes(model)):
        raise TamizError(
            f"{path}: holds a node with the operator Loop, which may never end; export the model"
            " without loops"
        )
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            tensor = value.const_value
            kinds = (value.dtype, None if tensor is None else tensor.dtype)
            if ir.DataType.STRING in kinds:
                raise TamizError(f"{path}: tensor {value.name} holds strings, expected numbers")
    for tensor in _external_tensors(model):
        _check_external(path, tensor)
    map_tensors(model, path.absolute().parent)
    mark_unknown_sizes(model)
    return model


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    """Nodes of the graph, of the graphs in it, and of functions."""
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _malformed_place(path: Path) -> str | None:
    """Which place of external data is no number, of a model that onnx_ir does not read."""
    import onnx

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception:  # of protobuf: it is no model at all
        return None
    for tensor in graph.initializer:
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not re.fullmatch(r"\d+", entry.value):
                place, found = f"external data of {tensor.name}", ascii(entry.value)[:100]
                return f"{place}: {entry.key}: found {found}, expected a number of bytes"
    return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    for node in _nodes(model):
        for attribute in node.attributes.values():
            if isinstance(attribute.value, ir.ExternalTensor):
                yield attribute.value
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value


def _check_external(path: Path, tensor: ir.ExternalTensor) -> None:
    field = f"{path}: external data of {tensor.name}"
    location = str(tensor.location)
    folder = path.absolute().parent
    try:
        file = file_inside(folder, location)
    except TamizError as error:
        raise TamizError(f"{field}: {error}") from error
    if math.prod(tensor.shape.numpy()) >= _MOST_VALUES:
        raise TamizError(f"{field}: found dimensions {list(tensor.shape)}, expected fewer values")
    offset, length = tensor.offset or 0, tensor.length
    if length is not None and length != tensor.nbytes:
        raise TamizError(f"{field}: found length {length}, expected {tensor.nbytes} bytes")
    size = file.stat().st_size
    if offset < 0 or offset + tensor.nbytes > size:
        raise TamizError(
            f"{field}: found {location} of {size} bytes, expected at least {offset + tensor.nbytes}"
        )
