"""What the weights of layers with a convolution or a recurrence over tokens have in common."""

from __future__ import annotations

import numpy as np

from tamiz_exporters.stored_tensor import Source, StackedTensor, find_tensor


def rate_of_log(values: np.ndarray) -> np.ndarray:
    """The rate −exp(A)."""
    rate: np.ndarray = -np.exp(values)
    return rate


def find_taps(source: Source, name: str, channels: int, taps: int) -> StackedTensor:
    """A convolution over tokens, ``[channels, taps]``; transformers has ``[channels, 1, taps]``.

    Args:
        source: The checked source.
        name: The tensor.
        channels: Its channels.
        taps: Tokens that it mixes.

    Raises:
        TamizError: The tensor is missing, or has another shape or type.
    """
    tensor = source.tensors.get(name)
    middle = (1,) if tensor is not None and len(tensor.shape) == 3 else ()
    return StackedTensor((find_tensor(source, name, (channels, *middle, taps)),))
