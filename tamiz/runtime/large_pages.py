"""Memory of large pages, and the constants of a bundle in it.

A step reads every weight once, from pages all over the file. onnxruntime maps it, in pages of 4 kB,
whose addresses no core keeps for tens of megabytes: every page costs a lookup, most of all where a
product leaves out lines. Linux gives pages of 2 MB to memory that requests them, not to mapped
files; so the weights are read instead, once, into memory of the process's own.

Processes that run the same bundle share the pages of its file where they map it. `shares` says when
they do: on request, or where a copy would take more than half of the memory that is free.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from tamiz.files.errors import TamizError
from tamiz.files.external_data import External
from tamiz.platforms import anonymous_memory, total_memory
from tamiz.system.memory import free_memory

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]

_PAGE = 2 << 20
#: A line of the cache; constants begin at multiples of it.
_LINE = 64
#: By ``TensorProto.DataType``.
_TYPES: dict[int, type[np.generic]] = {1: np.float32, 2: np.uint8, 6: np.int32, 7: np.int64}
#: Bytes of the largest constant of another type than uint8, the one of packed weights: larger ones
#: are weights of onnxruntime's own products, which makes copies of them.
_SMALL = 1 << 16
#: Environment variable; see `shares`.
SHARE = "TAMIZ_SHARE"
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def available() -> bool:
    """Whether the system gives large pages to memory that requests them."""
    return hasattr(mmap, "MADV_HUGEPAGE") and _SETTING.is_file() and "[never]" not in _text()


def _text() -> str:
    return _SETTING.read_text(encoding="ascii")


def shares(size: int) -> bool:
    """Whether a process maps the weights, which others may share, instead of reading them.

    The environment variable `TAMIZ_SHARE` decides: ``1`` maps them, ``0`` reads them. Without it
    they are mapped where they take more than half of the memory that is free.

    Args:
        size: Bytes of the weights.

    Raises:
        TamizError: `TAMIZ_SHARE` has another value, or is ``0`` for weights that do not fit.
    """
    setting, free = os.environ.get(SHARE, ""), free_memory()
    if setting not in ("", "0", "1"):
        raise TamizError(f"{SHARE} is {setting!r}, expected 0 or 1")
    if setting == "0" and size > free:
        raise TamizError(
            f"{SHARE} is '0', which reads all weights: they take {size / 1e9:,.1f} GB, and"
            f" {free / 1e9:,.1f} GB of memory are free; try without {SHARE}"
        )
    return setting == "1" if setting else size > free / 2


def load_constants(
    folder: Path, tensors: Iterable[External], options: ort.SessionOptions
) -> list[ort.OrtValue]:
    """Reads what tamiz's operators take of a model, for the session that `options` make.

    Args:
        folder: Of the bundle.
        tensors: Of its model, outside of the model's file.
        options: Are given the constants; the session then maps no file for them.

    Returns:
        The constants, which must live as long as the session. Empty where there are no large pages,
        less than one page of constants, or where `shares` says so: the session maps the file then.

    Raises:
        TamizError: A file ends too early, or `TAMIZ_SHARE` is neither 0 nor 1.
    """
    constants = [t for t in tensors if _is_read(t)]
    total = sum(aligned(constant.length) for constant in constants)
    if shares(total) or total < _PAGE or not available():
        return []
    memory = zeros(total)
    values, start = [], 0
    for constant in constants:
        array = memory[start : start + constant.length]
        _read(folder / constant.location, constant, array)
        shaped = array.view(_TYPES[constant.type]).reshape(constant.shape)
        values.append(ort.OrtValue.ortvalue_from_numpy(shaped))
        options.add_initializer(constant.name, values[-1])
        start += aligned(constant.length)
    return values


def _is_read(constant: External) -> bool:
    most = constant.length if _TYPES.get(constant.type) is np.uint8 else _SMALL
    return constant.initializer and constant.type in _TYPES and 0 < constant.length <= most


def zeros(size: int) -> Bytes:
    """So many bytes that begin with a large page, or, where there are none, with a cache line."""
    if size < _PAGE or not available():
        whole, unit = np.zeros(size + _LINE, np.uint8), _LINE
    else:
        whole, unit = np.frombuffer(anonymous_memory(size + 2 * _PAGE), np.uint8), _PAGE
    start = -whole.ctypes.data % unit
    return whole[start : start + size]


def arrays(forms: Iterable[tuple[Sequence[int], type[np.generic]]]) -> list[NDArray[Any]]:
    """Arrays of zeros one after the other, of these shapes and types.

    They lie in large pages, so that a decode step that reads rows here and there finds their
    addresses sooner, and each begins at a cache line, so that no vector load of a row crosses one.

    Raises:
        TamizError: They are larger than the machine's memory, or the system has not as much left.
    """
    named = [(tuple(shape), np.dtype(kind)) for shape, kind in forms]
    sizes = [math.prod(shape) * kind.itemsize for shape, kind in named]
    total = sum(map(aligned, sizes))
    has = total_memory()
    if total > has:
        raise TamizError(
            f"a cache of {total / 1e9:,.1f} GB does not fit in the machine's {has / 1e9:,.1f} GB of"
            " memory; try fewer tokens"
        )
    try:
        memory, views, start = zeros(total), list[NDArray[Any]](), 0
    except (OSError, MemoryError) as error:
        raise TamizError(
            f"a cache of {total / 1e9:,.1f} GB cannot be allocated: {error}; try fewer tokens"
        ) from error
    for (shape, kind), size in zip(named, sizes, strict=True):
        views.append(memory[start : start + size].view(kind).reshape(shape))
        start += aligned(size)
    return views


def aligned(length: int) -> int:
    """A number of bytes rounded up to whole cache lines."""
    return -(-length // _LINE) * _LINE


def _read(path: Path, constant: External, to: Bytes) -> None:
    with path.open("rb", buffering=0) as file:
        file.seek(constant.offset)
        count = file.readinto(to.data)
    if count != constant.length:
        raise TamizError(f"{path}: found {count} bytes of {constant.name}, not {constant.length}")
