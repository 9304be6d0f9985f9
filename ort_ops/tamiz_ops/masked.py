"""What a mask of blocks leaves of the inputs of a product; for the NumPy references."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def masked(x: Array, mask: Array | None, block: int) -> Array:
    """`x` ``[..., K]`` with 0 where the byte of its block of `block` inputs is 0."""
    if mask is None:
        return x
    kept = np.repeat(mask, block, axis=-1)[..., : x.shape[-1]] != 0
    return np.where(kept, x, x.dtype.type(0))
