"""A tensor as a file stores it, GGUF or safetensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

import numpy as np
from gguf import dequantize, quantize
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from tamiz_ops.formats import gguf_format
from tamiz_ops.formats.gguf_blocks import read_blocks

_CHUNK_WEIGHTS = 1 << 21
_FLOATS = (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.BF16)


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        name: Its name in the file.
        shape: Dimensions in NumPy's order, rows first.
        type: How its values are stored, in GGUF's terms.
        data: The stored bytes, ``uint8 [rows, row_bytes]``, mapped from the file.
        read: Puts these bytes together of others; None where `data` has them.
        factors: What the values of each row are multiplied by, ``float32 [rows]``; None for 1.
    """

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    data: np.ndarray = field(default_factory=lambda: np.empty((0, 0), np.uint8))
    read: Callable[[], np.ndarray] | None = None
    factors: np.ndarray | None = None

    def stored(self) -> np.ndarray:
        """The bytes, ``uint8 [rows, row_bytes]``."""
        return self.data if self.read is None else self.read()

    def as_vector(self) -> StoredTensor:
        """All its numbers in one row."""
        shape = (math.prod(self.shape),)
        return StoredTensor(self.name, shape, self.type, read=lambda: self.stored().reshape(1, -1))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors of the file that it is."""
        return (self.name,)

    @property
    def readable(self) -> bool:
        """Whether `dequantize` knows the type."""
        try:
            _floats(np.zeros((1, GGML_QUANT_SIZES[self.type][1]), np.uint8), self.type)
        except NotImplementedError:
            return False
        return True

    def dequantize(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Returns values as float32, bit for bit those of `gguf.dequantize` where it has the type.

        Works through the rows in chunks, so that memory stays close to the result's own size.

        Args:
            rows: Numbers of the rows wanted, in their order; all by default. Of a vector, the
                numbers of its elements.

        Returns:
            ``float32 [*shape]``, or as many of the first dimension as there are `rows`.
        """
        if rows is not None and len(self.shape) == 1:
            return np.asarray(self.dequantize()[rows])
        data = self.stored()
        count = len(data) if rows is None else len(rows)
        out = np.empty((count, self.shape[-1]), np.float32)
        step = max(1, _CHUNK_WEIGHTS // self.shape[-1])
        with np.errstate(invalid="ignore", over="ignore"):
            for row in range(0, count, step):
                part = slice(row, row + step)
                chosen = part if rows is None else rows[part]
                factors = None if self.factors is None else self.factors[chosen]
                out[part] = _floats(data[chosen], self.type, factors)
        return out.reshape(self.shape if rows is None else (count, *self.shape[1:]))


def _floats(
    data: np.ndarray, kind: GGMLQuantizationType, factors: np.ndarray | None = None
) -> np.ndarray:
    """Values of rows of blocks; gguf-py knows no factors, and Q1_0 by its size alone."""
    if factors is None and kind.name != "Q1_0":
        return dequantize(data, kind)
    inputs, block_bytes = GGML_QUANT_SIZES[kind]
    format = gguf_format(kind.name)
    assert format is not None
    return read_blocks(format, data, data.shape[1] // block_bytes * inputs, factors).values(format)


@dataclass(frozen=True)
class StackedTensor:
    """Tensors of a file, one after the other as one matrix, which is put together when it is read.

    Attributes:
        parts: The tensors, ``[..., K]`` each.
    """

    parts: tuple[StoredTensor, ...]

    @property
    def name(self) -> str:
        """Name of the first tensor."""
        return self.parts[0].name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors."""
        return tuple(part.name for part in self.parts)

    @property
    def shape(self) -> tuple[int, int]:
        """All rows, K."""
        rows = sum(math.prod(part.shape[:-1]) for part in self.parts)
        return rows, self.parts[0].shape[-1]

    @property
    def type(self) -> GGMLQuantizationType:
        """How the values are stored; F32 where the tensors differ, as then they are dequantised."""
        types = {part.type for part in self.parts}
        return types.pop() if len(types) == 1 else GGMLQuantizationType.F32

    def stored(self) -> np.ndarray:
        """The stored bytes, ``uint8 [rows, row_bytes]``."""
        if len(self.parts) == 1:
            return self.parts[0].stored()
        return np.concatenate([part.stored() for part in self.parts])

    @property
    def factors(self) -> np.ndarray | None:
        """What the values of each row are multiplied by, ``float32 [rows]``; None for 1."""
        if all(part.factors is None for part in self.parts):
            return None
        counts = [math.prod(part.shape[:-1]) for part in self.parts]
        given = (part.factors for part in self.parts)
        return np.concatenate(
            [np.ones(n, np.float32) if f is None else f for n, f in zip(counts, given, strict=True)]
        )

    def dequantize(self, rows: np.ndarray | None = None) -> np.ndarray:
        """Returns values as float32 ``[rows, K]``; see `StoredTensor.dequantize`."""
        columns = self.shape[1]
        values = np.concatenate([part.dequantize().reshape(-1, columns) for part in self.parts])
        return values if rows is None else values[rows]


@dataclass(frozen=True)
class TurnedKeys:
    """The keys' part of a matrix of keys and values of latents, turned: ``[heads·R, nope]``.

    Turned blocks would be others, so what is quantised becomes float16.

    Attributes:
        both: The matrix, ``[heads·(nope + value size), R]``.
        heads: Number of heads.
        nope: Rows of a head's keys.
    """

    both: StoredTensor
    heads: int
    nope: int

    @property
    def name(self) -> str:
        """Name of the matrix."""
        return self.both.name

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tensors of the file that it is made of."""
        return self.both.names

    @property
    def shape(self) -> tuple[int, int]:
        """heads·R, nope."""
        return self.heads * self.both.shape[1], self.nope

    @property
    def type(self) -> GGMLQuantizationType:
        """How the values are stored: as in the source, or as F16 where it has blocks."""
        return self.both.type if self.both.type in _FLOATS else GGMLQuantizationType.F16

    @property
    def factors(self) -> None:
        """None: the values have the factors of the source."""
        return None

    def stored(self) -> np.ndarray:
        """The bytes, ``uint8 [heads·R, row_bytes]``."""
        return np.asarray(quantize(self.dequantize(), self.type)).view(np.uint8)

    def dequantize(self, rows: np.ndarray | None = None) -> np.ndarray:
        """The values of the source as float32 ``[heads·R, nope]``, or these of its rows."""
        by_head = self.both.dequantize().reshape(self.heads, -1, self.both.shape[1])
        turned = np.ascontiguousarray(by_head[:, : self.nope].swapaxes(1, 2))
        values = turned.reshape(self.shape)
        return values if rows is None else values[rows]


#: What a weight of the graph is made of.
AnyTensor = StoredTensor | StackedTensor | TurnedKeys


class Source(Protocol):
    """Where the tensors of a model lie: a file, or several."""

    @property
    def path(self) -> Path:
        """What messages name."""

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """All tensors by name."""

    def fail(self, field: str, found: Any, expected: str) -> NoReturn:
        """Raises the TamizError that says what is wrong with a field."""


class OtherSource:
    """A source some of whose tensors are read as others; messages name the source itself.

    Attributes:
        tensors: All tensors by name.
    """

    def __init__(self, source: Source, tensors: Mapping[str, StoredTensor]) -> None:
        """Wraps a source.

        Args:
            source: The checked source.
            tensors: What stands for its tensors.
        """
        self._source = source
        self.tensors = tensors

    @property
    def path(self) -> Path:
        """What messages name."""
        return self._source.path

    def fail(self, field: str, found: Any, expected: str) -> NoReturn:
        """Raises the TamizError that says what is wrong with a field."""
        self._source.fail(field, found, expected)


def find_tensor(source: Source, name: str, shape: tuple[int | None, ...]) -> StoredTensor:
    """A tensor of a source.

    Args:
        source: The checked source.
        name: The tensor's name.
        shape: Expected shape; None for any size.

    Raises:
        TamizError: It is missing, has another shape, or a type that cannot be read.
    """
    expected_shape = " x ".join("any" if dim is None else str(dim) for dim in shape)
    if (tensor := source.tensors.get(name)) is None:
        source.fail(f"tensor {name}", "no such tensor", f"shape {expected_shape}")
    fits = len(tensor.shape) == len(shape) and all(
        want in (None, dim) for dim, want in zip(tensor.shape, shape, strict=True)
    )
    if not fits:
        source.fail(f"tensor {name}", " x ".join(map(str, tensor.shape)), f"shape {expected_shape}")
    if not tensor.readable:
        source.fail(f"tensor {name}: type", tensor.type.name, "a type that gguf dequantises")
    return tensor
