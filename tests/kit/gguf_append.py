"""Tensors added to a GGUF file that is written already."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType as Type

from tamiz_exporters.gguf_file import GgufFile

_ALIGNMENT, _COUNT_AT = 32, 8


def append_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Adds vectors of float32 behind the tensors of a file.

    Args:
        path: The file.
        arrays: ``float32 [n]`` by name.
    """
    file = GgufFile(path)
    head, data = bytearray(path.read_bytes()[: file.offset]), path.read_bytes()[file.offset :]
    data = data[-file.offset % _ALIGNMENT :]
    struct.pack_into("<Q", head, _COUNT_AT, len(file.tensors) + len(arrays))
    for name, array in arrays.items():
        data += bytes(-len(data) % _ALIGNMENT)
        head += struct.pack("<Q", len(name)) + name.encode()
        head += struct.pack("<IQIQ", 1, array.size, Type.F32, len(data))
        data += array.astype("<f4").tobytes()
    path.write_bytes(bytes(head) + bytes(-len(head) % _ALIGNMENT) + data)
