"""Weights of a graph that lie in a data file, mapped one by one while they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tamiz.files.external_data import External, inside

if TYPE_CHECKING:
    import onnx_ir as ir

#: Key in the ``meta`` of a mapped tensor: its data file and its offset there.
_PLACE = "tamiz.place"
#: Bytes of the largest new initializer beside a data file that is kept, and of what the model may
#: leave unused there, or a hundredth of the file.
_MOST_NEW, _MOST_UNUSED = 4096, 1 << 16


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
                mapped = ir.LazyTensor(read, tensor.dtype, tensor.shape, name=tensor.name)
                mapped.meta[_PLACE] = (str(tensor.location), tensor.offset or 0)
                value.const_value = mapped


def keep_places(model: ir.Model, tensors: Iterable[External], location: str) -> bool:
    """Lets a model with the mapped tensors of one data file point to that file again.

    Args:
        model: Graph whose mapped initializers become external tensors at `location`.
        tensors: All external tensors of the model that `map_tensors` mapped.
        location: Name of the data file in the folder that the model is saved to.

    Returns:
        Whether it did. False where an initializer of more than a page is new, or too much of the
        data file is not used: the model needs a data file of its own then, and stays as it is.
    """
    import onnx_ir as ir

    kept: dict[ir.Value, tuple[str, int]] = {}
    for graph in (model.graph, *model.graph.subgraphs()):
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and _PLACE in tensor.meta:
                kept[value] = tensor.meta[_PLACE]
            elif tensor is not None and tensor.nbytes > _MOST_NEW:
                return False
    places = {(tensor.location, tensor.offset): tensor.length for tensor in tensors}
    unused = sum(places[place] for place in places.keys() - kept.values())
    allowed = max(_MOST_UNUSED, sum(places.values()) // 100)
    if unused > allowed or len({file for file, _ in places}) != 1:
        return False
    for value, (_, offset) in kept.items():
        tensor = value.const_value
        assert tensor is not None
        assert value.name is not None
        shape = ir.Shape(tensor.shape.numpy())
        value.const_value = ir.ExternalTensor(
            location, offset, int(tensor.nbytes), tensor.dtype, shape=shape, name=value.name
        )
    return True


def _reader(path: Path, tensor: ir.ExternalTensor) -> Callable[[], ir.TensorProtocol]:
    """A function that maps the values of one tensor."""
    import onnx_ir as ir

    kind = tensor.dtype.numpy().newbyteorder("<")
    name, dtype, offset, shape = tensor.name, tensor.dtype, tensor.offset or 0, tensor.shape

    def read() -> ir.TensorProtocol:
        values = np.memmap(path, kind, "r", offset, tuple(shape.numpy()) or (1,))
        return ir.Tensor(values.reshape(shape.numpy()), dtype, shape=shape, name=name)

    return read
