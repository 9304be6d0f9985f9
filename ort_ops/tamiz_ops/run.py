"""One op on NumPy arrays, without ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tamiz_ops import _native

Array = npt.NDArray[Any]


def run(
    op: str,
    inputs: Sequence[Array | None],
    *,
    out: Sequence[Array | Literal[True] | None] | None = None,
    isa: str | None = None,
    threads: int = 1,
    **attributes: Any,
) -> list[Any]:
    """Runs one op of the `tamiz` domain (`schemas()` describes them), `Fused` included.

    Args:
        op: name of the op.
        inputs: the inputs in order; None is an omitted one.
        out: one entry an output: an array to write into (a KV buffer, say), True to have one made,
            None when it is not wanted. All are made when `out` is None.
        isa: instruction set, one of `cpu()["isas"]`; the best by default.
        threads: size of the team; the result does not depend on it.
        **attributes: attributes of the op.

    Returns:
        The outputs in order, None where one was not wanted.

    Raises:
        ValueError: an input, output or attribute that does not fit the op, in one sentence.
    """
    arrays = [None if value is None else _plain(value) for value in inputs]
    buffers = None if out is None else list(out)
    return _native.run(op, arrays, buffers, isa, threads, attributes)


def _plain(value: Array) -> Array:
    """The array, or a copy of it where it is not contiguous or not aligned."""
    return np.require(np.ascontiguousarray(value), requirements="A")
