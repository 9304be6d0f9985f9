"""Inputs on which two models are compared: made up from what a graph declares, or from a file.

What an input means is not declared, only its type and shape. So several kinds of numbers and of
lengths are tried, the likeliest first: tokens and masks by their names, then small positive ones,
which are valid as sizes, axes, counts and under logarithms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from tamiz.files.errors import TamizError
from tamiz.interface.states import PAST, State, decodes

Feeds = dict[str, Any]

_SEED = 0
#: NumPy's types of tensors.
_TYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "bool": np.bool_,
    "string": np.object_,
    "float16": np.float16,
    "complex64": np.complex64,
    "complex128": np.complex128,
    **{name: np.dtype(name).type for name in ("int8", "int16", "int32", "int64")},
    **{name: np.dtype(name).type for name in ("uint8", "uint16", "uint32", "uint64")},
}
_CONTAINER = re.compile(r"(seq|optional)\((.+)\)$")


@dataclass(frozen=True)
class Declared:
    """What a model declares of an input, as onnxruntime's ``NodeArg`` says it."""

    name: str
    type: str
    shape: Sequence[int | str | None]


@dataclass(frozen=True)
class _Try:
    """One way to make up inputs.

    Attributes:
        batch: Length of the first dimension, where it is not fixed.
        length: Length of the others.
        values: ``usual`` for normal numbers and what names say, else ``positive`` numbers of at
            least ½ and at most 1, ``ones`` or ``zeros``.
        rank: Of inputs whose rank is not declared.
    """

    batch: int
    length: int
    values: str = "usual"
    rank: int = 0


#: More numbers say more; of a model that reads tokens one text has enough.
_MANY_ROWS = _Try(8, 8)
_TRIES = (
    _Try(1, 8),
    _Try(1, 8, "positive"),
    _Try(2, 2),
    _Try(2, 2, "positive"),
    _Try(1, 1, "ones"),
    _Try(4, 4, "zeros"),
    _Try(3, 3, "usual", 2),
    _Try(3, 3, "ones", 1),
    _Try(8, 8, "ones", 4),
    _Try(16, 16, "positive", 3),
    _Try(1, 64),  # sides of an image that is halved five times
)
#: Lengths of several draws, in turn, and rows of each.
_LENGTHS, _ROWS = (64, 32, 16, 8), 2
#: Most numbers of an input of more than `_LONG` in a dimension that is not fixed.
_MOST, _LONG = 1 << 20, 16


def made_up(
    inputs: Sequence[ort.NodeArg | Declared],
    vocabulary: int,
    others: int | None = None,
    draw: int | None = None,
) -> Iterator[Feeds]:
    """Inputs that may be valid for a model, the likeliest first.

    Args:
        inputs: What the model declares.
        vocabulary: Token ids are drawn below this.
        others: Integers of fewer than two dimensions that are no ids by their name are drawn below
            this, as they may be sizes; None: as ids are.
        draw: Which of several draws: each has its own numbers, and another length than the last
            where the model takes it.
    """
    reads_text = any(node.name == "input_ids" for node in inputs)
    decoder = decodes(node.name for node in inputs)
    kinds = _TRIES if reads_text else (_MANY_ROWS, *_TRIES)
    if draw is not None:
        kinds = (_Try(_ROWS, _LENGTHS[draw % len(_LENGTHS)]), *kinds)
    for kind in kinds:
        generator = np.random.default_rng(_SEED + (draw or 0))
        maker = _Maker(kind, vocabulary, others or vocabulary, generator, decoder)
        try:
            yield {node.name: maker.value(node) for node in inputs}
        except _TooLargeError:
            continue
        except _UnknownTypeError:
            return


def sample_files(places: Iterable[Path]) -> tuple[Path, ...]:
    """The ``.npz`` files that are meant: files, and those of folders in the order of their names.

    Raises:
        TamizError: A folder holds none.
    """
    found: list[Path] = []
    for place in places:
        files = sorted(place.glob("*.npz")) if place.is_dir() else [place]
        if not files:
            raise TamizError(f"{place}: found no .npz file, expected one for each input")
        found += files
    return tuple(found)


def read_sample(path: Path, session: ort.InferenceSession) -> Feeds:
    """The inputs in an ``.npz`` file, by name.

    Raises:
        TamizError: The file cannot be read, lacks a required input, or has another one, another
            type or another shape than the model declares.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, NumPy and the system each raise their own
        raise TamizError(f"{path}: cannot be read as an .npz file: {error}") from error
    declared = {node.name: node for node in session.get_inputs()}
    optional = {node.name: node for node in session.get_overridable_initializers()}
    expected = ", ".join(f"{name} {node.type}{node.shape}" for name, node in declared.items())
    if missing := sorted(declared.keys() - arrays.keys()):
        raise TamizError(f"{path}: lacks the input {missing[0]}, expected {expected}")
    for name, array in arrays.items():
        node = declared.get(name) or optional.get(name)
        if node is None:
            raise TamizError(f"{path}: found {name}, which is no input, expected {expected}")
        kind = _TYPES.get(node.type.removeprefix("tensor(").rstrip(")"))
        if kind is not np.object_ and array.dtype != kind:
            raise TamizError(f"{path}: {name} is {array.dtype}, expected {node.type}")
        if kind is np.object_:
            arrays[name] = array.astype(np.object_)
        fixed = len(node.shape) == array.ndim and all(
            size == found_size
            for size, found_size in zip(node.shape, array.shape, strict=True)
            if isinstance(size, int)
        )
        if node.shape and not fixed:
            raise TamizError(f"{path}: {name} has shape {array.shape}, expected {node.shape}")
    return arrays


class _UnknownTypeError(Exception):
    """A type of which no values are made up."""


class _TooLargeError(Exception):
    """A length makes an input too large."""


@dataclass
class _Maker:
    """Makes the inputs of one try; dimensions of one name have one length."""

    kind: _Try
    vocabulary: int
    others: int
    generator: np.random.Generator
    decoder: bool
    lengths: dict[str, int] = field(default_factory=dict)

    def value(self, node: ort.NodeArg) -> Any:
        if self.decoder and node.name.startswith(PAST) and (state := State.of(node)):
            return state.zeros(self.kind.batch)
        return self._of_type(node.type, node)

    def _of_type(self, kind: str, node: ort.NodeArg) -> Any:
        container = _CONTAINER.match(kind)
        if container:
            inner = self._of_type(container.group(2), node)
            return [inner, inner] if container.group(1) == "seq" else inner
        dtype = _TYPES.get(kind.removeprefix("tensor(").removesuffix(")"))
        if dtype is None:
            raise _UnknownTypeError(kind)
        dims = node.shape or [None] * self.kind.rank
        shape = [self._length(dim, axis) for axis, dim in enumerate(dims)]
        if self.kind.length > _LONG and math.prod(shape) > _MOST:
            raise _TooLargeError
        return self._numbers(node.name, dtype, shape)

    def _length(self, dim: int | str | None, axis: int) -> int:
        """Length of one dimension, from its name where it is not fixed."""
        if isinstance(dim, int):
            return dim
        length = self.kind.batch if axis == 0 else self.kind.length
        if dim is None:
            return length
        if "past" in dim and "+" not in dim:
            return 0
        return self.lengths.setdefault(dim, length)

    def _numbers(self, name: str, dtype: Any, shape: list[int]) -> Any:
        if dtype is np.object_:
            return np.full(shape, "1", np.object_)
        if self.kind.values in ("ones", "zeros"):
            return np.full(shape, self.kind.values == "ones", dtype)
        if np.issubdtype(dtype, np.inexact):
            draw: Callable[..., Any] = self.generator.standard_normal
            if self.kind.values == "positive":
                draw = lambda size: self.generator.uniform(0.5, 1.0, size)  # noqa: E731
            return np.asarray(draw(shape)).astype(dtype)
        if self.kind.values == "positive":
            return np.asarray(self.generator.integers(1, 3, shape)).astype(dtype)
        return self._integers(name, dtype, shape)

    def _integers(self, name: str, dtype: Any, shape: list[int]) -> Any:
        values: Any
        if "position" in name:
            values = np.broadcast_to(np.arange(shape[-1] if shape else 1), shape)
        elif "mask" in name:
            values = np.ones(shape)
        elif "type" in name:
            values = np.zeros(shape)
        else:
            ids = "ids" in name or len(shape) > 1  # sizes and axes are numbers or vectors
            below = self.vocabulary if ids else self.others
            most = 2 if dtype is np.bool_ else min(below, 100) if _short(dtype) else below
            values = self.generator.integers(0, most, shape)
        return np.asarray(values).astype(dtype)


def _short(dtype: Any) -> bool:
    """Whether token ids need not fit."""
    return bool(np.dtype(dtype).itemsize < 4)
