"""A bias on scores by the distance of query i and key j, slope_h · (j - i) (Press et al. 2021).

With H heads, c the largest power of two up to H, and m the largest exponent:

    slope_h = 2^(-m (h + 1) / c)               h < c
    slope_h = 2^(-m (2 (h - c) + 1) / (2 c))   the others
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from tamiz_exporters.graph_builder import GraphBuilder


def alibi_slopes(heads: int, most: float = 8.0) -> tuple[float, ...]:
    """The slope of each head.

    Args:
        heads: H.
        most: m.
    """
    closest = 1 << heads.bit_length() - 1
    exponents = [*range(2, 2 * closest + 1, 2), *range(1, 2 * (heads - closest), 2)]
    return tuple(2.0 ** (-most * exponent / (2 * closest)) for exponent in exponents)


def distance_bias(
    of: GraphBuilder,
    name: str,
    slopes: tuple[float, ...],
    kv_heads: int,
    key: ir.Value,
    query: ir.Value,
) -> ir.Value:
    """Returns what is added to scores, ``[1, Hkv, G·S, L]``.

    Args:
        of: The graph.
        name: What begins the names of the nodes.
        slopes: By query head.
        kv_heads: Hkv.
        key: The columns of keys, ``[L]``.
        query: The columns of queries, ``[S]``.
    """
    constant = f"{name[1:].replace('/', '.')}.slopes"
    by_head = np.array(slopes, np.float32).reshape(kv_heads, -1, 1, 1)
    factors = of.initialize(constant, ir.tensor(by_head, name=constant))
    rows = of.op("Unsqueeze", f"{name}/Unsqueeze", query, of.constant([1]))
    distance = of.op("Sub", f"{name}/Sub", key, rows)
    distance = of.op("Cast", f"{name}/Cast", distance, to=ir.DataType.FLOAT)
    bias = of.op("Mul", f"{name}/Mul", factors, distance)
    return of.op("Reshape", f"{name}/Reshape", bias, of.constant([1, kv_heads, -1, 0]))
