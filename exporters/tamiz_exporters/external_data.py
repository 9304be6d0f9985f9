"""Models whose weights lie beside them in one file: checked when read, aligned when written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from tamiz.api import DATA, MODEL, TamizError

#: Offsets in the data file, in bytes: a page, so that every mapped tensor starts on one.
ALIGNMENT = 4096
#: Tensors up to this many bytes stay in the .onnx file.
INLINE_BYTES = 256


def save_model(model: ir.Model, directory: Path) -> None:
    """Writes ``model.onnx`` and ``model.onnx.data``, one tensor in memory at a time."""
    ir.save(
        model,
        directory / MODEL,
        external_data=DATA,
        size_threshold_bytes=INLINE_BYTES,
        alignment=ALIGNMENT,
        align_threshold=0,
    )


def load_model(path: Path) -> ir.Model:
    """Reads a model without its weights and checks where they lie.

    Args:
        path: The .onnx file.

    Returns:
        The model; external tensors are mapped when used.

    Raises:
        TamizError: If the file is no ONNX model, or external data is missing, too short, or
            outside of the model's folder.
    """
    try:
        model = ir.load(path)
    except OSError as error:
        raise TamizError(f"{path}: cannot be read: {error.strerror}") from error
    except Exception as error:
        raise TamizError(f"{path}: not an ONNX model ({_first_line(error)})") from error
    for tensor in _external_tensors(model):
        _check_external(path, tensor)
    return model


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    nodes = [*model.graph.all_nodes()]
    for function in model.functions.values():
        nodes += function.all_nodes()
    for node in nodes:
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
    folder = path.resolve().parent
    file = (folder / location).resolve()
    if Path(location).is_absolute() or not file.is_relative_to(folder):
        raise TamizError(f"{field}: found location {location}, expected a file inside {folder}")
    if not file.is_file():
        raise TamizError(f"{field}: found no file {location}, expected it beside the model")
    offset, length = tensor.offset or 0, tensor.length
    if length is not None and length != tensor.nbytes:
        raise TamizError(f"{field}: found length {length}, expected {tensor.nbytes} bytes")
    size = file.stat().st_size
    if offset < 0 or offset + tensor.nbytes > size:
        raise TamizError(
            f"{field}: found {location} of {size} bytes, expected at least {offset + tensor.nbytes}"
        )
