"""Random arrays, and how far arrays lie apart."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


def random(*shape: int, scale: float = 1.0, seed: int = 0) -> Float32:
    """Normally distributed numbers."""
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return values.astype(np.float32)


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The largest difference, in units of the largest expected value."""
    return float(np.abs(found - expected).max() / np.abs(expected).max())
