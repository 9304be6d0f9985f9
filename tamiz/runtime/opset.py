"""The version of the `tamiz` operator domain that a model needs, read without the onnx package."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path

from tamiz.files.errors import TamizError

#: Newest version of the domain `tamiz` that tamiz-ops implements.
NEWEST = 1

_DOMAIN = b"tamiz"
# Protocol Buffers: wire types, and the fields of ModelProto and OperatorSetIdProto that are read.
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_OPSET_IMPORT = 8
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2


def check_opset(model: Path) -> None:
    """Refuses a model that needs a newer version of the `tamiz` domain.

    onnxruntime loads such a model silently: it takes any version of a custom domain.

    Args:
        model: An ONNX file. Only its top level is read; onnxruntime reports damaged files.

    Raises:
        TamizError: The model needs a newer version.
    """
    with model.open("rb") as file:
        if file.seek(0, 2) == 0:
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for field, value in _fields(data):
                if field == _OPSET_IMPORT and isinstance(value, bytes):
                    opset = dict(_fields(value))
                    version = int(opset.get(_OPSET_VERSION, 0))
                    if opset.get(_OPSET_DOMAIN) == _DOMAIN and version != NEWEST:
                        raise TamizError(
                            f"{model}: found version {version} of the operator domain tamiz, "
                            f"expected {NEWEST}; try another version of tamiz, or build the "
                            "bundle again"
                        )


def _fields(data: bytes | mmap.mmap) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message; longer than 1 kB are skipped, as are graphs.

    Ends early where the message is damaged.
    """
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind, field = tag & 7, tag >> 3
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield field, value
        elif kind == _BYTES:
            size, at = _varint(data, at)
            if size <= 1024:
                yield field, bytes(data[at : at + size])
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
