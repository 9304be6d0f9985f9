"""Weights of a graph that lie in a data file, mapped one by one while they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tamiz.files.external_data import inside

if TYPE_CHECKING:
    import onnx_ir as ir


def map_tensors(model: ir.Model, folder: Path) -> None:
    """Lets every external initializer map its own bytes of the data file, and only while in use.

    onnx-ir maps the whole file for each of them and keeps it: 200 times the model's size. It also
    refuses linked files, such as those of Hugging Face's cache.

    Args:
        model: Graph whose initializers are replaced in place.
        folder: Folder of the model.

    Raises:
        TamizError: A location leads out of the folder or to no file.
    """
    import onnx_ir as ir

    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and tensor.size and tensor.dtype.bitwidth >= 8:
                read = _reader(inside(folder, str(tensor.location)), tensor)
                value.const_value = ir.LazyTensor(
                    read, tensor.dtype, tensor.shape, name=tensor.name
                )


def _reader(path: Path, tensor: ir.ExternalTensor) -> Callable[[], ir.TensorProtocol]:
    """A function that maps the values of one tensor."""
    import onnx_ir as ir

    kind = tensor.dtype.numpy().newbyteorder("<")
    name, dtype, offset, shape = tensor.name, tensor.dtype, tensor.offset or 0, tensor.shape

    def read() -> ir.TensorProtocol:
        values = np.memmap(path, kind, "r", offset, tuple(shape.numpy()) or (1,))
        return ir.Tensor(values.reshape(shape.numpy()), dtype, shape=shape, name=name)

    return read
