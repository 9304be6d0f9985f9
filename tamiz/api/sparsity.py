"""Choosing what to keep of a weight, for techniques that store a part of it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tamiz.api.statistics import Statistics


def importance(statistics: Statistics | None, k: int) -> NDArray[np.float32]:
    """√m of every input, m its mean x² on the calibration text, scaled to a mean m of 1.

    The error of a product on that text is, inputs taken as uncorrelated, that of W · diag(√m).

    Args:
        statistics: What calibration knows; None counts all inputs alike.
        k: Inputs.

    Returns:
        float32 ``[K]``.
    """
    if statistics is None or not statistics.imatrix.any():
        return np.ones(k, np.float32)
    m = statistics.imatrix.astype(np.float64)
    root: NDArray[np.float32] = np.sqrt(m / m.mean()).astype(np.float32)
    return root


def largest_in_rows(values: NDArray[Any], count: int) -> NDArray[np.bool_]:
    """Where the `count` largest of every row are; of equal ones the first.

    Args:
        values: ``[N, K]``.
        count: At least 0; all where K is smaller.

    Returns:
        ``[N, K]``.
    """
    chosen = np.zeros(values.shape, np.bool_)
    order = np.argsort(-values, axis=1, kind="stable")[:, :count]
    np.put_along_axis(chosen, order, True, axis=1)
    return chosen


def largest_blocks(
    weighted: NDArray[np.float32], rows: int, block: int, count: int
) -> NDArray[np.bool_]:
    """The `count` blocks of inputs with the most energy, of every `rows` outputs together.

    Args:
        weighted: ``[N, K]``.
        rows: Outputs that share their blocks.
        block: Inputs of a block.
        count: Blocks to keep.

    Returns:
        ``[ceil(N / rows), ceil(K / block)]``.
    """
    n, k = weighted.shape
    squares = np.square(weighted, dtype=np.float64)
    tiles = np.add.reduceat(squares, np.arange(0, n, rows), axis=0)
    return largest_in_rows(np.add.reduceat(tiles, np.arange(0, k, block), axis=1), count)
