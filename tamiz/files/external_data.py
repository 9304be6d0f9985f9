"""Lists what lies in the external data files of an ONNX model, without importing onnx.

A bundle is opened where every megabyte counts, so this walks the protobuf wire format (a tag, then
a varint, 4 or 8 bytes, or a length and that many bytes) through the messages that can hold a
tensor and steps over everything else.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tamiz.files.errors import NoSpaceError, TamizError, printable

#: Message → field number → message it holds, from onnx.proto. Fields that lead to no tensor are
#: left out.
_MESSAGES = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {
        5: "Tensor",
        6: "Graph",
        10: "Tensor",
        11: "Graph",
        22: "SparseTensor",
        23: "SparseTensor",
    },
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
    "Tensor": {13: "Entry"},
    "Entry": {},
}
_KEY, _VALUE = 1, 2
#: Fields of a Tensor.
_DIMS, _TYPE, _NAME = 1, 2, 8
#: Field of a Node, and the operator whose number of rounds its own graph decides: onnxruntime does
#: not stop it, not even for SIGTERM.
_OPERATOR, _ENDLESS = 4, b"Loop"
#: Nesting of the graph's own initializers: in a Graph in the Model.
_INITIALIZER = 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_DEPTH = 64
#: Values of a tensor, more than any machine holds; bytes of a path.
_MOST_VALUES, _LONGEST_PATH = 1 << 48, 4096


@dataclass(frozen=True)
class External:
    """A tensor outside of the model's file.

    Attributes:
        name: Of an initializer.
        initializer: Whether it is one of the graph's own, not of a graph in it.
        type: A number of ``TensorProto.DataType``.
        shape: Its dimensions.
        location: The file, relative to the model's folder.
        offset: Bytes before it.
        length: Its bytes; 0 where the model does not say.
    """

    name: str
    initializer: bool
    type: int
    shape: tuple[int, ...]
    location: str
    offset: int
    length: int


def external_tensors(model: Path) -> tuple[External, ...]:
    """The tensors of a model that lie outside of its file.

    Raises:
        TamizError: The file is empty or no well-formed protobuf, or it holds a Loop.
    """
    tensors: list[_Tensor] = []
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _walk(data, 0, len(data), "Model", tensors, 0)
        return tuple(tensor.external() for tensor in tensors if b"location" in tensor.entries)
    except _EndlessError as error:
        raise TamizError(
            f"{model}: holds a node with the operator Loop, which may never end; export the model"
            " without loops"
        ) from error
    except (ValueError, IndexError) as error:
        raise TamizError(f"{model}: not a well-formed ONNX model ({error})") from error


def check_written(model: Path) -> None:
    """Refuses data files that are shorter than their model says: NumPy overlooks a full disk.

    Raises:
        NoSpaceError: One is.
    """
    for location, size in locations(external_tensors(model)).items():
        written = (model.parent / location).stat().st_size
        if written < size:
            raise NoSpaceError(
                f"{model.parent / location}: cannot be written: no space left, it has {written} of"
                f" {size} bytes"
            )


def inside(folder: Path, location: str) -> Path:
    """The regular file at a location in a folder, links followed.

    A link may lead to a file in the folder. In the cache of Hugging Face's hub, where the files of
    ``<repository>/snapshots/<revision>`` are links, it may lead to ``<repository>/blobs``.

    Raises:
        TamizError: The location leads out of the folder, or to no regular file.
    """
    shown = printable(repr(location), 200)
    if not location or "\0" in location or len(location) > _LONGEST_PATH:
        raise TamizError(f"location {shown} is no path, expected a file in {folder}")
    within = Path(os.path.normpath(location))
    if within.is_absolute() or ".." in within.parts:
        raise TamizError(f"location {shown} leads out of the folder, expected a file in {folder}")
    try:
        file, home = (folder / within).resolve(), folder.resolve()
        if not file.is_file():
            raise TamizError(f"location {shown} is missing or no file, expected one in {folder}")
    except (OSError, RuntimeError) as error:  # a name that is too long, links in a circle
        raise TamizError(f"location {shown} cannot be read, expected a file in {folder}") from error
    homes = [home]
    if home.parent.name == "snapshots":
        homes.append(home.parent.parent / "blobs")
    if not any(file.is_relative_to(allowed) for allowed in homes):
        raise TamizError(f"location {shown} is a link out of the folder, expected a file there")
    return file


class _EndlessError(Exception):
    """A model that may never end."""


def locations(tensors: Iterable[External]) -> dict[str, int]:
    """The files that tensors lie in, and the bytes that each must have."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        end = tensor.offset + tensor.length
        sizes[tensor.location] = max(end, sizes.get(tensor.location, 0))
    return sizes


@dataclass
class _Tensor:
    """What was read of a tensor."""

    depth: int
    name: bytes = b""
    type: int = 0
    shape: list[int] = dataclasses.field(default_factory=list)
    entries: dict[bytes, bytes] = dataclasses.field(default_factory=dict)

    def external(self) -> External:
        """It, if it has a location."""
        if math.prod(self.shape) >= _MOST_VALUES:
            raise ValueError(f"a tensor has the dimensions {self.shape}")
        return External(
            self.name.decode("utf-8"),
            self.depth == _INITIALIZER,
            self.type,
            tuple(self.shape),
            self.entries[b"location"].decode("utf-8"),
            int(self.entries.get(b"offset", b"0")),
            int(self.entries.get(b"length", b"0")),
        )


def _walk(
    data: mmap.mmap,
    position: int,
    end: int,
    message: str,
    tensors: list[_Tensor],
    depth: int,
) -> None:
    """Walks one message at ``data[position:end]``; notes what every tensor says of itself."""
    if depth > _MAX_DEPTH:
        raise ValueError("messages nest too deep")
    holds = _MESSAGES[message]
    if message == "Tensor":
        tensors.append(_Tensor(depth))
    entry: dict[int, bytes] = {}
    while position < end:
        tag, position = _varint(data, position)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, position = _varint(data, position)
            if message == "Tensor" and field == _DIMS:
                tensors[-1].shape.append(value)
            elif message == "Tensor" and field == _TYPE:
                tensors[-1].type = value
            continue
        if wire == _BYTES:
            size, position = _varint(data, position)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {wire}")
        if position + size > end:
            raise ValueError("a field runs over its end")
        if wire == _BYTES and field in holds:
            _walk(data, position, position + size, holds[field], tensors, depth + 1)
        elif message == "Entry" and field in (_KEY, _VALUE):
            entry[field] = data[position : position + size]
        elif message == "Tensor" and field == _NAME:
            tensors[-1].name = data[position : position + size]
        elif (
            message == "Node"
            and field == _OPERATOR
            and data[position : position + size] == _ENDLESS
        ):
            raise _EndlessError
        position += size
    if message == "Entry":
        tensors[-1].entries[entry.get(_KEY, b"")] = entry.get(_VALUE, b"")


def _varint(data: mmap.mmap, position: int) -> tuple[int, int]:
    """The integer at `position` and the position after it."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, position
    raise ValueError("a varint is longer than 10 bytes")
