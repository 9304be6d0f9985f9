"""The nodes of a softmax in whose sum a score of each head joins, its sink.

p = softmax(concat(scores, sink)), of which the last column is cut away
"""

from __future__ import annotations

import onnx_ir as ir

from tamiz_exporters.graph_builder import GraphBuilder


def softmax(
    of: GraphBuilder, name: str, heads: int, kv_heads: int, scores: ir.Value, queries: ir.Value
) -> ir.Value:
    """The softmax of scores ``[B, Hkv, G·S, L]`` of queries ``[B, H, S, D]``.

    Args:
        of: The graph.
        name: What begins the names of the nodes of an attention, and with dots of its sinks, which
            may be missing.
        heads: H, query heads.
        kv_heads: Hkv.
        scores: The scores.
        queries: The queries.
    """
    if not of.has(name, "sinks"):
        return of.op("Softmax", f"{name}/Softmax", scores, axis=-1)
    at, one = f"{name}/sinks", of.constant([1])
    by_head = of.constant([1, heads, 1, 1])
    sinks = of.op("Reshape", f"{at}/Reshape", of.weight(name, "sinks"), by_head)
    shape = of.op("Shape", f"{at}/Shape", queries, start=0, end=3)
    shape = of.op("Concat", f"{at}/Concat", shape, one, axis=0)
    sinks = of.op("Expand", f"{at}/Expand", sinks, shape)
    sinks = of.op("Reshape", f"{at}/Reshape_1", sinks, of.constant([0, kv_heads, -1, 1]))
    scores = of.op("Concat", f"{at}/Concat_1", scores, sinks, axis=-1)
    scores = of.op("Softmax", f"{name}/Softmax", scores, axis=-1)
    first, last, axis = (of.constant([value]) for value in (0, -1, 3))
    return of.op("Slice", f"{at}/Slice", scores, first, last, axis)
