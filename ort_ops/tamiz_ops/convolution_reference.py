"""A short convolution over time in NumPy and float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops.cache_rows import PAGE

Array = npt.NDArray[Any]


def short_conv(
    b: Array | None,
    c: Array | None,
    x: Array,
    weight: Array,
    past: Array,
    attention_mask: Array,
    sequences: Array | None = None,
    bias: Array | None = None,
    *,
    silu: int = 0,
) -> list[Array]:
    """u_t = b_t x_t; y_t = c_t f(bias + w_0 u_(t - taps + 1) + ... + w_(taps - 1) u_t).

    f is silu, or nothing. Without them b and c are 1, and bias is 0. [y, present].
    The row of token t in `past` is t mod rows; in a page of `sequences`, t mod 64 mod rows.
    """
    taps, rows = len(weight), past.shape[1]
    present = past.astype(np.float64)
    u = x.astype(np.float64) if b is None else b.astype(np.float64) * x
    if sequences is None or not len(sequences):
        u = np.where(attention_mask[:, -x.shape[1] :, None] != 0, u, 0)
    y = np.zeros_like(u)
    for row, first, begin, count, pages in _segments(x, attention_mask, sequences):
        for token in range(begin, begin + count):
            at = row, first + token - begin
            for tap in range(taps):
                before = token - taps + 1 + tap
                if before == token:
                    y[at] += weight[tap] * u[at]
                elif before >= 0:
                    y[at] += weight[tap] * present[_place(row, before, rows, pages)]
            present[_place(row, token, rows, pages)] = u[at]
    y = y if bias is None else y + bias
    y = y / (1 + np.exp(-y)) if silu else y
    return [y if c is None else c * y, present]


def _segments(
    x: Array, attention_mask: Array, sequences: Array | None
) -> Iterator[tuple[int, int, int, int, list[int] | None]]:
    """Row of the batch, first token of the call, first token of the sequence, tokens, pages."""
    if sequences is None or not len(sequences):
        past = attention_mask.shape[1] - x.shape[1]
        yield from ((row, 0, past, x.shape[1], None) for row in range(len(x)))
        return
    first = 0
    for past, count, *pages in sequences.tolist():
        yield 0, first, past, abs(count), pages
        first += abs(count)


def _place(row: int, token: int, rows: int, pages: list[int] | None) -> tuple[int, int]:
    return (row, token % rows) if pages is None else (pages[token // PAGE], token % PAGE % rows)
