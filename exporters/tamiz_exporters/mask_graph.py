"""The nodes of the masks on scores of a decoder's graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from tamiz_exporters.alibi import distance_bias

if TYPE_CHECKING:
    from tamiz_exporters.decoder_graph import DecoderGraph

#: By window, and by query heads that share a head of keys.
Masks = dict[tuple[int, int], ir.Value]

_FLOAT_MIN = float(np.finfo(np.float32).min)


def attention_masks(of: DecoderGraph, ids: ir.Value) -> Masks:
    """Returns what is added to the scores, ``[B, 1, G·S, L]``: 0 or -max.

    Query i stands at position L - S + i of the mask and sees the keys up to itself, of a
    window W the last W of them. A slope times the distance may be added, for all layers at once.
    """
    if not of.config.attentions:
        return {}
    heads = of.config.kv_heads
    zero, one = of.constant(0), of.constant(1)
    sequence = of.op("Shape", "/model/Shape", ids, start=1)
    total = of.op("Shape", "/model/Shape_1", of.attention_mask, start=1)
    sequence = of.op("Squeeze", "/model/Squeeze", sequence)
    total = of.op("Squeeze", "/model/Squeeze_1", total)
    past = of.op("Sub", "/model/Sub", total, sequence)
    key = of.op("Range", "/model/Range", zero, total, one)
    query = of.op("Range", "/model/Range_1", past, total, one)
    given = of.op("Cast", "/model/Cast", of.attention_mask, to=ir.DataType.BOOL)
    given = of.op("Unsqueeze", "/model/Unsqueeze_1", given, of.constant([1, 2]))
    wanted = dict.fromkeys((at.window, of.config.group_of(at)) for at in of.config.attentions)
    masks: Masks = {}
    for group in dict.fromkeys(group for _, group in wanted):
        scope = f"/model/group.{group}" if masks else "/model"
        rows = of.op("Tile", f"{scope}/Tile", query, of.constant([group])) if group > 1 else query
        rows = of.op("Unsqueeze", f"{scope}/Unsqueeze", rows, of.constant([1]))
        causal = of.op("LessOrEqual", f"{scope}/LessOrEqual", key, rows)
        visible = of.op("And", f"{scope}/And", causal, given)
        for window in (window for window, of_rows in wanted if of_rows == group):
            name, seen = scope, visible
            if window:
                name = f"{scope}/window.{window}"
                begin = of.op("Sub", f"{name}/Sub", rows, of.constant(window))
                near = of.op("Greater", f"{name}/Greater", key, begin)
                seen = of.op("And", f"{name}/And", visible, near)
            shown, hidden = (of.constant(number, np.float32) for number in (0.0, _FLOAT_MIN))
            mask = of.op("Where", f"{name}/Where", seen, shown, hidden)
            if of.config.slopes:
                bias = distance_bias(of, f"{name}/alibi", of.config.slopes, heads, key, query)
                mask = of.op("Add", f"{name}/alibi/Add", mask, bias)
            masks[window, group] = mask
    return masks
