"""GGUF files, read with every count, length and offset checked against the file's size.

`gguf.GGUFReader` trusts what it reads, so a truncated or hostile file costs gigabytes or a
traceback there; here it costs one sentence. Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from tamiz_exporters.checked_file import CheckedFile
from tamiz_exporters.i2_s import I2_S, i2_s_bytes, tq2_0_of_i2_s
from tamiz_exporters.stored_tensor import StoredTensor

_SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "|b1",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
#: How a tensor is stored; None for I2_S, which gguf does not know.
_Kind = GGMLQuantizationType | None
_MIN_KEY_VALUE = 8 + 4 + 1
_MIN_TENSOR_INFO = 8 + 4 + 8 + 4 + 8
_MAX_DIMS = 4
_MAX_NAME = 65_535


class GgufFile(CheckedFile):
    """A GGUF file whose structure has been checked.

    Attributes:
        path: The file.
        metadata: Key-value pairs: numbers, booleans, strings, lists of strings, NumPy arrays.
        tensors: Tensors by name, in file order.
    """

    def __init__(self, path: Path) -> None:
        """Reads and checks the whole header.

        Args:
            path: The .gguf file.

        Raises:
            TamizError: If the file is truncated, inconsistent, or of an unknown version.
        """
        super().__init__(path, least=24)
        self.metadata: dict[str, Any] = {}
        self.tensors: dict[str, StoredTensor] = {}
        tensor_count, pair_count = self._read_header()
        for _ in range(pair_count):
            self._read_pair()
        infos = [self._read_tensor_info() for _ in range(tensor_count)]
        self._map_tensors(infos)

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """Returns one metadata value, checked to be of `kind`.

        Args:
            key: Metadata key.
            kind: ``int``, ``float`` (an int is accepted too), ``bool``, ``str`` or ``list``.
            default: Value where the key is absent; None makes the key required.

        Raises:
            TamizError: If the key is absent and required, or holds something else.
        """
        value = self.metadata.get(key, default)
        if value is None:
            self.fail(key, "nothing", f"a value of type {kind.__name__}")
        if kind is float and type(value) is int:
            value = float(value)
        if kind is list and isinstance(value, np.ndarray):
            value = value.tolist()
        if type(value) is not kind:
            self.fail(key, f"a value of type {type(value).__name__}", f"type {kind.__name__}")
        return value

    def description(self) -> dict[str, Any]:
        """Returns what the file says of its origin and quantisation, such as its imatrix."""
        kept = ("general.", "quantize.")
        return {
            key: value
            for key, value in self.metadata.items()
            if key.startswith(kept) and isinstance(value, str | int | list)
        }

    def _string(self, field: str) -> str:
        return self.text(self.number("<Q", f"length of {field}"), field)

    def _name(self, field: str) -> str:
        length = self.number("<Q", f"length of {field}")
        if length > _MAX_NAME:
            self.fail(f"length of {field}", str(length), f"at most {_MAX_NAME}")
        return self.text(length, field)

    def _count(self, field: str, entry_bytes: int) -> int:
        count = self.number("<Q", field)
        room = (self.size - self.offset) // entry_bytes
        if count > room:
            self.fail(field, str(count), f"at most {room}, which is what the file has room for")
        return count

    def _read_header(self) -> tuple[int, int]:
        begin = self.take(4, "magic")
        magic = self.bytes[begin : begin + 4]
        if magic != b"GGUF":
            self.fail("magic", repr(magic), "b'GGUF'")
        version = self.number("<I", "version")
        if version not in (2, 3):
            self.fail("version", str(version), "2 or 3, little-endian")
        tensors = self._count("tensor count", _MIN_TENSOR_INFO)
        return tensors, self._count("key-value count", _MIN_KEY_VALUE)

    def _read_pair(self) -> None:
        key = self._name(f"key {len(self.metadata)}")
        if key in self.metadata:
            self.fail(key, "the key twice", "every key once")
        self.metadata[key] = self._read_value(self._value_type(key), key)

    def _value_type(self, key: str) -> GGUFValueType:
        number = self.number("<I", f"type of {key}")
        try:
            return GGUFValueType(number)
        except ValueError:
            self.fail(f"type of {key}", str(number), "a GGUF value type from 0 to 12")

    def _read_value(self, kind: GGUFValueType, key: str) -> Any:
        if kind == GGUFValueType.STRING:
            return self._string(key)
        if kind == GGUFValueType.ARRAY:
            return self._read_array(key)
        dtype = np.dtype(_SCALARS[kind])
        begin = self.take(dtype.itemsize, key)
        return np.frombuffer(self.bytes, dtype, 1, begin)[0].item()

    def _read_array(self, key: str) -> list[str] | np.ndarray:
        kind = self._value_type(key)
        if kind == GGUFValueType.ARRAY:
            self.fail(key, "an array of arrays", "an array of numbers or strings")
        dtype = None if kind == GGUFValueType.STRING else np.dtype(_SCALARS[kind])
        length = self._count(f"length of {key}", dtype.itemsize if dtype else 8)
        if dtype is None:
            return [self._string(f"{key}[{index}]") for index in range(length)]
        return np.frombuffer(self.bytes, dtype, length, self.take(length * dtype.itemsize, key))

    def _read_tensor_info(self) -> tuple[str, tuple[int, ...], _Kind, int]:
        name = self._name("tensor name")
        n_dims = self.number("<I", f"tensor {name}: n_dims")
        if not 1 <= n_dims <= _MAX_DIMS:
            self.fail(f"tensor {name}: n_dims", str(n_dims), f"1 to {_MAX_DIMS}")
        dims = [self.number("<Q", f"tensor {name}: dims[{axis}]") for axis in range(n_dims)]
        for axis, dim in enumerate(dims):
            if not 0 < dim < 2**63:
                self.fail(f"tensor {name}: dims[{axis}]", str(dim), "1 to 2^63 - 1")
        number = self.number("<I", f"tensor {name}: type")
        try:
            kind = None if number == I2_S else GGMLQuantizationType(number)
        except ValueError:
            self.fail(f"tensor {name}: type", str(number), "a known ggml type")
        return name, tuple(reversed(dims)), kind, self.number("<Q", f"tensor {name}: offset")

    def _alignment(self) -> int:
        alignment = self.get("general.alignment", int, 32)
        if alignment <= 0 or alignment & (alignment - 1):
            self.fail("general.alignment", str(alignment), "a power of two")
        return int(alignment)

    def _map_tensors(self, infos: list[tuple[str, tuple[int, ...], _Kind, int]]) -> None:
        alignment = self._alignment()
        start = -(-self.offset // alignment) * alignment
        end_of_previous, previous = 0, ""
        for name, shape, kind, offset in sorted(infos, key=lambda info: info[3]):
            if offset % alignment:
                self.fail(f"tensor {name}: offset", str(offset), f"a multiple of {alignment}")
            if offset < end_of_previous:
                self.fail(f"tensor {name}: offset", str(offset), f"no overlap with {previous}")
            end_of_previous, previous = offset + self._bytes(name, shape, kind), name
            if start + end_of_previous > self.size:
                self.fail(
                    f"tensor {name}: data",
                    f"a file of {self.size} bytes",
                    f"{start + end_of_previous} or more; was it downloaded whole?",
                )
        for name, shape, kind, offset in infos:
            if name in self.tensors:
                self.fail(f"tensor {name}", "the name twice", "every name once")
            count = self._bytes(name, shape, kind)
            data = np.frombuffer(self.bytes, np.uint8, count, start + offset)
            if kind is None:
                self.tensors[name] = self._ternary(name, shape, data)
            else:
                rows = data.reshape(math.prod(shape[:-1]), -1)
                self.tensors[name] = StoredTensor(name, shape, kind, rows)

    def _ternary(self, name: str, shape: tuple[int, ...], data: np.ndarray) -> StoredTensor:
        """A tensor of type I2_S, which is read as TQ2_0."""

        def fail(part: str, found: Any, expected: str) -> NoReturn:
            self.fail(f"tensor {name}: {part}", found, expected)

        def read() -> np.ndarray:
            return tq2_0_of_i2_s(data, math.prod(shape[:-1]), shape[-1], fail)

        return StoredTensor(name, shape, GGMLQuantizationType.TQ2_0, read=read)

    def _bytes(self, name: str, shape: tuple[int, ...], kind: _Kind) -> int:
        """Bytes of a tensor."""
        whole = GGMLQuantizationType.TQ2_0 if kind is None else kind
        block, block_bytes = GGML_QUANT_SIZES[whole]
        if shape[-1] % block:
            named = "I2_S" if kind is None else kind.name
            found = str(shape[-1])
            self.fail(f"tensor {name}: dims[0]", found, f"a multiple of {block} for {named}")
        rows = math.prod(shape[:-1])
        if kind is None:
            return i2_s_bytes(rows, shape[-1])
        return rows * (shape[-1] // block) * block_bytes
