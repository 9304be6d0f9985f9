"""The nodes of the masks on scores of a decoder's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from tamiz_exporters.decoder_graph import DecoderGraph

_FLOAT_MIN = float(np.finfo(np.float32).min)


def attention_masks(of: DecoderGraph, ids: ir.Value) -> dict[int, ir.Value]:
    """Returns by window what is added to the scores, ``[B, 1, G·S, L]``: 0 or -max.

    Query i stands at position L - S + i of the mask and sees the keys up to itself, of a
    window W the last W of them.
    """
    if not of.config.attentions:
        return {}
    group = of.config.heads // of.config.kv_heads
    zero, one = of.constant(0), of.constant(1)
    sequence = of.op("Shape", "/model/Shape", ids, start=1)
    total = of.op("Shape", "/model/Shape_1", of.attention_mask, start=1)
    sequence = of.op("Squeeze", "/model/Squeeze", sequence)
    total = of.op("Squeeze", "/model/Squeeze_1", total)
    past = of.op("Sub", "/model/Sub", total, sequence)
    key = of.op("Range", "/model/Range", zero, total, one)
    query = of.op("Range", "/model/Range_1", past, total, one)
    if group > 1:
        query = of.op("Tile", "/model/Tile", query, of.constant([group]))
    query = of.op("Unsqueeze", "/model/Unsqueeze", query, of.constant([1]))
    causal = of.op("LessOrEqual", "/model/LessOrEqual", key, query)
    given = of.op("Cast", "/model/Cast", of.attention_mask, to=ir.DataType.BOOL)
    given = of.op("Unsqueeze", "/model/Unsqueeze_1", given, of.constant([1, 2]))
    visible = of.op("And", "/model/And", causal, given)
    masks = {}
    for window in dict.fromkeys(at.window for at in of.config.attentions):
        name, seen = "/model", visible
        if window:
            name = f"/model/window.{window}"
            begin = of.op("Sub", f"{name}/Sub", query, of.constant(window))
            near = of.op("Greater", f"{name}/Greater", key, begin)
            seen = of.op("And", f"{name}/And", visible, near)
        shown, hidden = (of.constant(number, np.float32) for number in (0.0, _FLOAT_MIN))
        masks[window] = of.op("Where", f"{name}/Where", seen, shown, hidden)
    return masks
