"""Tensors of safetensors files, mapped, with every size and offset checked against the file's.

Layout: https://github.com/huggingface/safetensors#format. The library's NumPy reader has no
bfloat16.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tamiz.api import TamizError, file_inside, read_json
from tamiz_exporters.checked_file import CheckedFile, fail
from tamiz_exporters.stored_tensor import StoredTensor

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_TYPES = {
    "F32": GGMLQuantizationType.F32,
    "F16": GGMLQuantizationType.F16,
    "BF16": GGMLQuantizationType.BF16,
    "U8": GGMLQuantizationType.I8,
}
#: Bytes of a header, as the library allows; dimensions of a tensor.
_MAX_HEADER, _MAX_DIMS = 100_000_000, 8
_MAX_DIM = 1 << 48
_NONE = re.compile(r"(?!)")


class SafetensorsFolder:
    """The weights of a model in one file, or in several with an index.

    Attributes:
        path: The folder.
        tensors: Tensors by name.
    """

    def __init__(self, path: Path, ignored: re.Pattern[str] = _NONE) -> None:
        """Reads and checks the headers.

        Args:
            path: A folder with ``model.safetensors`` or ``model.safetensors.index.json``.
            ignored: Names of tensors that are no weights, of whatever type.

        Raises:
            TamizError: If a file is missing, damaged, or lies outside of the folder.
        """
        self.path = path
        self.tensors: dict[str, StoredTensor] = {}
        if (path / WHOLE).is_file() and not (path / INDEX).is_file():
            self.tensors = _read(_file(path, WHOLE), ignored)
            return
        index = path / INDEX
        places = read_json(index).get("weight_map")
        if not isinstance(places, dict) or not all(isinstance(p, str) for p in places.values()):
            fail(index, "weight_map", "something else", "file names by tensor")
        files = {name: _read(_file(path, name), ignored) for name in dict.fromkeys(places.values())}
        for tensor, name in places.items():
            if ignored.fullmatch(tensor):
                continue
            if tensor not in files[name]:
                fail(index, f"weight_map: {tensor}", name, "a file that has it")
            self.tensors[tensor] = files[name][tensor]

    def fail(self, field: str, found: Any, expected: str) -> NoReturn:
        """Raises the TamizError that says what is wrong with a field of the folder."""
        fail(self.path, field, found, expected)


def is_there(path: Path) -> bool:
    """Whether a folder has weights of a model as safetensors."""
    return (path / WHOLE).is_file() or (path / INDEX).is_file()


def _file(folder: Path, name: str) -> Path:
    try:
        return file_inside(folder, name)
    except TamizError as error:
        raise TamizError(f"{folder}: {error}") from error


def _read(path: Path, ignored: re.Pattern[str]) -> dict[str, StoredTensor]:
    """Maps one file."""
    file = CheckedFile(path, least=9)
    length = file.number("<Q", "length of the header")
    if not 0 < length <= min(file.size - file.offset, _MAX_HEADER):
        file.fail("length of the header", length, f"1 to {file.size - file.offset}")
    text = file.text(length, "header")
    try:
        header = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise TamizError(f"{path}: the header is not valid JSON: {error!r}"[:300]) from error
    if not isinstance(header, dict):
        file.fail("header", type(header).__name__, "a JSON object")
    header.pop("__metadata__", None)
    data = np.frombuffer(file.bytes, np.uint8)[file.offset :]
    names = [name for name in header if not ignored.fullmatch(name)]
    return {name: _tensor(path, name, header[name], data) for name in names}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key stands twice")
    return fields


def _tensor(path: Path, name: str, entry: Any, data: np.ndarray) -> StoredTensor:
    field = f"tensor {name}"
    entry = entry if isinstance(entry, dict) else {}
    kind, shape, place = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(kind, str) or kind not in _TYPES:
        fail(path, f"{field}: dtype", kind, "F32, F16, BF16 or U8")
    if not _are_counts(shape, _MAX_DIM) or len(shape) > _MAX_DIMS or 0 in shape:
        fail(path, f"{field}: shape", shape, f"at most {_MAX_DIMS} positive numbers")
    shape = shape or [1]  # of one number
    if not _are_counts(place, len(data)) or len(place) != 2:
        fail(path, f"{field}: data_offsets", place, f"two up to {len(data)}")
    begin, end = place
    row_bytes = shape[-1] * GGML_QUANT_SIZES[_TYPES[kind]][1]
    rows = math.prod(shape[:-1])
    if end - begin != rows * row_bytes:
        expected = f"a length of {rows * row_bytes} bytes"
        fail(path, f"{field}: data_offsets", place, expected)
    stored = data[begin:end].reshape(rows, row_bytes)
    return StoredTensor(name, tuple(shape), _TYPES[kind], stored)


def _are_counts(values: Any, most: int) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v <= most for v in values)
