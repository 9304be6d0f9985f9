"""A source some of whose matrices are stored as ``[K, N]``, as the Conv1D of GPT-2 has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from gguf.constants import GGML_QUANT_SIZES

from tamiz_exporters.stored_tensor import Source, StoredTensor


class TurnedSource:
    """Another source with these matrices as ``[N, K]``.

    Attributes:
        tensors: All tensors by name.
    """

    def __init__(self, source: Source, ends: tuple[str, ...]) -> None:
        """Notes which matrices are turned when they are read.

        Args:
            source: The checked source.
            ends: What their names end with.
        """
        self._source = source
        self.tensors = {
            name: _turned(tensor) if name.endswith(ends) and len(tensor.shape) == 2 else tensor
            for name, tensor in source.tensors.items()
        }

    @property
    def path(self) -> Path:
        """What messages name."""
        return self._source.path

    def fail(self, field: str, found: Any, expected: str) -> NoReturn:
        """Raises the TamizError that says what is wrong with a field."""
        self._source.fail(field, found, expected)


def _turned(tensor: StoredTensor) -> StoredTensor:
    """``[K, N]`` as ``[N, K]``."""
    columns, rows = tensor.shape
    size = GGML_QUANT_SIZES[tensor.type][1]

    def read() -> np.ndarray:
        numbers = tensor.stored().reshape(columns, rows, size).swapaxes(0, 1)
        return np.ascontiguousarray(numbers).reshape(rows, columns * size)

    return StoredTensor(tensor.name, (rows, columns), tensor.type, read=read)
