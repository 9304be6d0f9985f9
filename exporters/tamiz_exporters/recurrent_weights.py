"""What the weights of layers with a convolution or a recurrence over tokens have in common."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tamiz_exporters.graph_weights import Weight
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


def convolution_weights(
    source: Source, name: str, channels: int, taps: int, target: str
) -> Iterator[Weight]:
    """A convolution as `find_taps` finds it, and its bias where it has one.

    Args:
        source: The checked source.
        name: The module.
        channels: Its channels.
        taps: Tokens that it mixes.
        target: What names of the layer begin with in the graph.

    Raises:
        TamizError: A tensor is missing, or has another shape or type.
    """
    found = find_taps(source, f"{name}.weight", channels, taps)
    yield Weight(f"{target}.taps.weight", found, packable=False)
    if f"{name}.bias" in source.tensors:
        bias = find_tensor(source, f"{name}.bias", (channels,))
        yield Weight(f"{target}.conv_bias.weight", bias)


def linear_weights(
    source: Source, name: str, width: int, parts: dict[str, int], target: str
) -> Iterator[Weight]:
    """Projections that a source keeps as one, and their biases where it has one.

    Args:
        source: The checked source.
        name: The module.
        width: Its inputs.
        parts: Outputs of each projection by its name in the graph, in the order of the rows.
        target: What names of the layer begin with in the graph.

    Raises:
        TamizError: A tensor is missing, or has another shape or type.
    """
    count, first = sum(parts.values()), 0
    for part, size in parts.items():
        rows = np.arange(first, first + size) if size < count else None
        weight = find_tensor(source, f"{name}.weight", (count, width))
        yield Weight(f"{target}.{part}.weight", weight, rows)
        if f"{name}.bias" in source.tensors:
            bias = find_tensor(source, f"{name}.bias", (count,))
            yield Weight(f"{target}.{part}.bias", bias, rows)
        first += size
