"""Packed weights and rounded inputs of products, in NumPy and float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tamiz_ops import formats
from tamiz_ops.formats import GROUP, TILE

Array = npt.NDArray[Any]


def dequantize(packed: Array, bits: int, n: int, k: int, scale_bits: int = 16) -> Array:
    """The weight that a packed tensor stands for.

    Args:
        packed: uint8 [tiles, tile bytes]. A tile is 16 outputs, a group 32 inputs, and the groups
            of a tile follow each other. 4 bits: 256 bytes of quants, 16 fp16 scales, 16 fp16
            minima; w = scale * q + minimum. With scales of 8 bits 256 bytes of quants, 16 scales,
            16 minima, and after the groups of a tile 16 fp16 numbers, units times 256;
            w = unit * (scale * q - 8 * minimum). 8 bits: 512 bytes of q + 128, 16 fp16 scales;
            w = scale * q.
        bits: 4 or 8.
        n: outputs, without padding.
        k: inputs, without padding.
        scale_bits: 16, or with 4 bits 8.

    Returns:
        float64 [n, k].
    """
    quant_bytes = TILE * GROUP * bits // 8
    group_bytes = quant_bytes + scale_bits // 8 * TILE * (2 if bits == 4 else 1)
    tiles = packed.shape[0]
    whole = packed.shape[1] // group_bytes * group_bytes
    units = np.ascontiguousarray(packed[:, whole:]).view(np.float16).astype(np.float64) / 256
    group: Array = np.ascontiguousarray(packed[:, :whole]).reshape(tiles, -1, group_bytes)
    quants = group[:, :, :quant_bytes].reshape(tiles, group.shape[1], -1, TILE, 4)
    if bits == 4:  # one vector: inputs 0..3 in the low nibbles, 4..7 in the high ones
        quants = np.stack([quants & 15, quants >> 4], axis=3)
        quants = quants.reshape(tiles, group.shape[1], -1, TILE, 4).astype(np.float64)
    else:
        quants = quants.astype(np.float64) - 128
    quants = quants.transpose(0, 3, 1, 2, 4).reshape(tiles, TILE, group.shape[1], GROUP)
    constants: Array = np.ascontiguousarray(group[:, :, quant_bytes:])
    constants = constants.view(np.float16 if scale_bits == 16 else np.uint8)
    constants = constants.astype(np.float64).reshape(tiles, group.shape[1], -1, TILE)
    constants = constants.transpose(2, 0, 3, 1)[..., np.newaxis]
    if scale_bits == 8:
        weight = (constants[0] * quants - 8 * constants[1]).reshape(tiles * TILE, -1)
        weight *= units.reshape(-1, 1)
    else:
        weight = constants[0] * quants + (constants[1] if bits == 4 else 0)
    padded: Array = weight.reshape(tiles * TILE, -1)
    return padded[:n, :k]


def stored_weight(packed: Array, bits: int, n: int, k: int, scale_bits: int, format: str) -> Array:
    """The weight, float64 [n, k], of an op with these attributes."""
    if format:
        return formats.dequantize(formats.find_format(format), packed, n, k).astype(np.float64)
    return dequantize(packed, bits, n, k, scale_bits)


def in_bytes(x: Array, inputs: int = GROUP) -> Array:
    """x rounded to round(x / s) * s, s = max |x| / 127 of every group of `inputs`, float64."""
    k = x.shape[-1]
    groups = np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -k % inputs)])
    groups = groups.reshape(*x.shape[:-1], -1, inputs)
    largest = np.abs(groups).max(-1, keepdims=True)
    inverse = np.divide(np.float32(127), largest, out=np.zeros_like(largest), where=largest > 0)
    rounded = np.rint(groups * inverse) * (largest / np.float32(127)).astype(np.float64)
    flat: Array = rounded.reshape(*x.shape[:-1], -1)[..., :k]
    return flat
