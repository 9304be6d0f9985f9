"""A source some of whose matrices are stored as ``[K, N]``, as the Conv1D of GPT-2 has them."""

from __future__ import annotations

import numpy as np
from gguf.constants import GGML_QUANT_SIZES

from tamiz_exporters.stored_tensor import OtherSource, Source, StoredTensor


def with_turned(source: Source, ends: tuple[str, ...]) -> Source:
    """Another source with these matrices as ``[N, K]``, which are turned when they are read.

    Args:
        source: The checked source.
        ends: What their names end with.
    """
    tensors = {
        name: _turned(tensor) if name.endswith(ends) and len(tensor.shape) == 2 else tensor
        for name, tensor in source.tensors.items()
    }
    return OtherSource(source, tensors)


def _turned(tensor: StoredTensor) -> StoredTensor:
    """``[K, N]`` as ``[N, K]``."""
    columns, rows = tensor.shape
    size = GGML_QUANT_SIZES[tensor.type][1]

    def read() -> np.ndarray:
        numbers = tensor.stored().reshape(columns, rows, size).swapaxes(0, 1)
        return np.ascontiguousarray(numbers).reshape(rows, columns * size)

    return StoredTensor(tensor.name, (rows, columns), tensor.type, read=read)
