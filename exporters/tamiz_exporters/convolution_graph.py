"""The nodes of a gated short convolution in a decoder's graph (LFM2).

With x the normed residual stream, each channel alone, and u = 0 before the first token:

    b, c, v = x·W_in                             three parts, each as wide as x
    u_t     = b_t · v_t                          0 at padding
    y_t     = c_t · Σ_j w_j · u_{t-L+1+j}        j = 0 … L - 1
    output  = y·W_out

A past holds u of the last L - 1 tokens, the present those of the run that follows.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from tamiz_exporters.graph_builder import GraphBuilder, typed_value

_END = int(np.iinfo(np.int64).max)


def convolution_state(name: str, taps: int, hidden: int) -> ir.Value:
    """A past or a present of a layer, ``[B, L - 1, H]``.

    Args:
        name: Its name.
        taps: L.
        hidden: H.
    """
    return typed_value(name, ir.DataType.FLOAT, "batch_size", taps - 1, hidden)


def shown_tokens(of: GraphBuilder, ids: ir.Value, attention_mask: ir.Value) -> ir.Value:
    """1 at tokens of a run and 0 at its padding, float32 ``[B, S, 1]``.

    Args:
        of: The graph.
        ids: The tokens ``[B, S]``.
        attention_mask: ``[B, past + S]``.
    """
    length = of.op("Shape", "/model/shown/Shape", ids, start=1)
    begin = of.op("Neg", "/model/shown/Neg", length)
    end, axis = of.constant([_END]), of.constant([1])
    shown = of.op("Slice", "/model/shown/Slice", attention_mask, begin, end, axis)
    shown = of.op("Cast", "/model/shown/Cast", shown, to=ir.DataType.FLOAT)
    return of.op("Unsqueeze", "/model/shown/Unsqueeze", shown, of.constant([2]))


def add_convolution(
    of: GraphBuilder,
    name: str,
    x: ir.Value,
    shown: ir.Value,
    past: ir.Value,
    present: ir.Value,
) -> ir.Value:
    """Adds the nodes of one layer; returns what it adds to the residual stream.

    Args:
        of: The graph.
        name: What begins the names of the nodes, and with dots of the weights: ``in_proj.weight``,
            ``conv.weight`` ``[H, L]``, ``out_proj.weight``.
        x: ``[B, S, H]``.
        shown: See `shown_tokens`.
        past: See `convolution_state`.
        present: Likewise.
    """
    weight = of.weight(f"{name}/conv")
    hidden, taps = weight.shape.numpy()  # type: ignore[union-attr]
    parts = [ir.Value(name=f"{name}/{part}") for part in "bcv"]
    wide, sizes = of.linear(f"{name}/in_proj", x), of.constant([hidden] * 3)
    axis = ir.convenience.convert_attribute("axis", -1)
    of.nodes.append(
        ir.Node("", "Split", [wide, sizes], [axis], outputs=parts, name=f"{name}/Split")
    )
    b, c, v = parts
    u = of.op("Mul", f"{name}/Mul", of.op("Mul", f"{name}/gate", b, v), shown)
    u = of.op("Concat", f"{name}/Concat", past, u, axis=1)
    ends = of.constant([1 - taps]), of.constant([_END]), of.constant([1])
    of.op("Slice", f"{name}/Slice", u, *ends, output=present)
    kernel = of.op("Unsqueeze", f"{name}/conv/Unsqueeze", weight, of.constant([1]))
    channels = of.op("Transpose", f"{name}/Transpose", u, perm=[0, 2, 1])
    y = of.op("Conv", f"{name}/conv/Conv", channels, kernel, group=hidden)
    y = of.op("Transpose", f"{name}/Transpose_1", y, perm=[0, 2, 1])
    return of.linear(f"{name}/out_proj", of.op("Mul", f"{name}/Mul_1", c, y))
