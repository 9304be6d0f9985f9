"""What the file of an ONNX model says before onnxruntime loads it: versions, and names of inputs.

A bundle is opened where every megabyte counts, so this reads protobuf without the onnx package.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Protocol Buffers: wire types, and the fields that are read of ModelProto, OperatorSetIdProto,
# GraphProto and ValueInfoProto.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_IR_VERSION, _GRAPH, _OPSET_IMPORT = 1, 7, 8
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2
_INPUT, _NAME = 11, 1

#: Newest IR version and opset of ONNX that a release of onnxruntime reads (measured), oldest first.
_RELEASES = (
    ("1.20", 10, 21),
    ("1.21", 10, 22),
    ("1.23", 11, 23),
    ("1.24", 13, 25),
    ("1.25", 13, 26),
)
OLDEST_ONNXRUNTIME = _RELEASES[0][0]


@dataclass(frozen=True)
class OnnxVersions:
    """What a model declares; 0 and nothing where its file is damaged.

    Attributes:
        ir: Version of the format.
        opsets: Version by domain; the domain of ONNX's own ops is "".
    """

    ir: int = 0
    opsets: dict[str, int] = field(default_factory=dict)

    @property
    def min_onnxruntime(self) -> str:
        """Oldest release of onnxruntime, of those that tamiz supports, that reads the model.

        The newest known one where none is known to.
        """
        opset = self.opsets.get("", 0)
        for release, most_ir, most_opset in _RELEASES:
            if self.ir <= most_ir and opset <= most_opset:
                return release
        return _RELEASES[-1][0]


def onnx_versions(model: Path) -> OnnxVersions:
    """Reads the versions at the top level of an ONNX file; onnxruntime reports damaged files."""
    ir, opsets = 0, {}
    with model.open("rb") as file:
        if file.seek(0, 2) == 0:
            return OnnxVersions()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for number, value in _fields(data):
                if number == _IR_VERSION and isinstance(value, int):
                    ir = value
                elif number == _OPSET_IMPORT and isinstance(value, bytes):
                    opset = dict(_fields(value))
                    domain, version = opset.get(_OPSET_DOMAIN, b""), opset.get(_OPSET_VERSION, 0)
                    if isinstance(domain, bytes) and isinstance(version, int):
                        name = domain.decode("utf-8", "replace")
                        opsets["" if name == "ai.onnx" else name] = version
    return OnnxVersions(ir, opsets)


def graph_inputs(model: Path) -> list[str]:
    """Names of the inputs of a graph; nothing where its file is damaged."""
    names = []
    with model.open("rb") as file:
        if file.seek(0, 2) == 0:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for number, graph in _spans(data, slice(0, len(data))):
                if number != _GRAPH or not isinstance(graph, slice):
                    continue
                for inner, given in _spans(data, graph):
                    if inner == _INPUT and isinstance(given, slice):
                        name = dict(_fields(data[given])).get(_NAME, b"")
                        if isinstance(name, bytes):
                            names.append(name.decode("utf-8", "replace"))
    return names


def _fields(data: bytes | mmap.mmap) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message; longer than 1 kB are skipped, as are graphs."""
    for number, value in _spans(data, slice(0, len(data))):
        if not isinstance(value, slice):
            yield number, value
        elif value.stop - value.start <= 1024:
            yield number, bytes(data[value])


def _spans(data: bytes | mmap.mmap, of: slice) -> Iterator[tuple[int, int | slice]]:
    """Number of each field of a message in `data`, and its value, or where its bytes are.

    Ends early where the message is damaged.
    """
    at = of.start
    while at < min(of.stop, len(data)):
        tag, at = _varint(data, at)
        kind, field = tag & 7, tag >> 3
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield field, value
        elif kind == _BYTES:
            size, at = _varint(data, at)
            yield field, slice(at, at + size)
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            return


def _varint(data: bytes | mmap.mmap, at: int) -> tuple[int, int]:
    """The number at `at`, and where the next field begins."""
    value = shift = 0
    while at < len(data):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return value, at
