"""Random weights in the formats of BlockMatMul."""

import numpy as np

import tamiz_ops
from tamiz_ops import reference


def weight(bits, n, k, scale_bits=16, seed=0) -> tuple[np.ndarray, np.ndarray]:
    """A random weight, packed, and |scale * quant| + |minimum| of every element."""
    rng = np.random.default_rng([seed, bits, n, k])
    groups = -(-k // 32)
    if scale_bits == 8:
        quants = rng.integers(0, 16, (n, k), dtype=np.uint8)
        scales, minima = rng.integers(0, 256, (2, n, groups), dtype=np.uint8)
        units = rng.uniform(0.001, 0.02, n).astype(np.float16)
        packed = tamiz_ops.pack_int4_in_units(quants, scales, minima, units)
        terms = quants * spread(scales, k) + 8 * spread(minima, k)
        return packed, terms * units[:, None].astype(np.float64) / 256
    scales = rng.uniform(0.001, 0.02, (n, groups)).astype(np.float16)
    if bits == 8:
        packed = tamiz_ops.pack_int8(rng.integers(-127, 128, (n, k), dtype=np.int8), scales)
        return packed, np.abs(reference.dequantize(packed, 8, n, k))
    quants = rng.integers(0, 16, (n, k), dtype=np.uint8)
    minima = rng.uniform(-0.2, 0.1, (n, groups)).astype(np.float16)
    packed = tamiz_ops.pack_int4(quants, scales, minima)
    terms = quants * spread(scales, k) + np.abs(spread(minima, k))
    return packed, terms


def spread(groups, k) -> np.ndarray:
    return np.repeat(groups.astype(np.float64), 32, axis=-1)[..., :k]
